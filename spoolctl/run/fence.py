"""The fence: before a job may run again, every process of its old attempt is gone, proved.

A dead worker's command may still run: it has a session of its own. Its processes are found by
their group, by the marker in their environment (which also finds what called setsid), and by the
lock on the attempt's stdout, which whoever inherited that output still holds: even from another
pid namespace, where it can be noticed but not ended. They get TERM, KILL after a grace, and are
looked for again. What cannot be ended keeps the fence closed, and `stuck` says why. Never blocks:
the caller's loop calls `step`.
"""

from __future__ import annotations

import os
import signal

from spoolctl.limits import TERM_GRACE
from spoolctl.run.liveness import boot_id, lock_held, pid_namespace
from spoolctl.run.proc import available, holds_lock, living, read_stat, scan
from spoolctl.run.process import group_exists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.run.proc import Stat
    from spoolctl.store.workers import Worker

    Processes = list[tuple[Stat, "str | None"]]

# In the place of a leader's start time: it has been waited for, so whoever has its number now is another.
ENDED = -1
LOOK_AGAIN = 0.05  # seconds between two looks while something is being ended
LOOK_AT_STUCK = 1.0  # and where it cannot be


class Fence:
    """One attempt whose processes are to be ended.

    marker: its SPOOLCTL_MARKER. group: its process group, None where it was never recorded or
    means nothing here. start: the kernel's start time of the group's leader. output: the path of
    its stdout file. since: when its end was begun, in monotonic seconds. sure: whoever is in the
    group is of the attempt. stuck: why something cannot be ended, None while all goes well.
    """

    def __init__(self, marker: str, group: int | None, start: int | None, output: str, since: float) -> None:
        self.marker, self.group, self.start, self.output = marker, group, start, output
        self.kill_at = since + TERM_GRACE
        self.next = since
        self.termed: set[tuple[int, int]] = set()
        self.group_termed = False
        self.sure = False
        self.stuck: str | None = None

    def step(self, now: float, processes: Processes | None = None) -> bool:
        """Do what is due; True when nothing of the attempt is left.

        now: monotonic seconds. processes: what `proc.scan` has just found, where the caller has many
        fences; None: look.
        """
        self.stuck, left = None, True
        number = signal.SIGKILL if now >= self.kill_at else signal.SIGTERM
        try:
            left = self._end_processes(number, processes) if available() else self._end_group(number)
            if not left and lock_held(self.output):
                self.stuck = "a process that cannot be seen from here still holds its output"
        except OSError as error:
            self.stuck = f"the processes cannot be looked through: {error.strerror}"
        self.next = now + (LOOK_AGAIN if self.stuck is None else LOOK_AT_STUCK)
        return not left and self.stuck is None

    def _end_processes(self, number: int, processes: Processes | None) -> bool:
        """Signal each surviving process; whether there was any."""
        ours, unsure = self._find(scan() if processes is None else processes)
        if not ours and not unsure and lock_held(self.output):
            ours = lock_holders(self.output)
        refused = [stat.pid for stat in ours if self._due(stat, number) and not _signal(stat, number)]
        if refused:
            self.stuck = f"process {refused[0]} may not be signalled by this user"
        elif unsure and not ours:
            self.stuck = f"process {unsure[0].pid} may belong to it, or be a stranger that has its group's number"
        return bool(ours or unsure)

    def _find(self, processes: Processes) -> tuple[list[Stat], list[Stat]]:
        """The live processes that are the attempt's, and those that may be.

        The group's number is the attempt's for as long as a process has been seen in it since its
        own leader was: the kernel gives it to nobody else meanwhile. Where the leader is gone at
        the first look, a member without the marker may be a stranger's: it is left alone.
        """
        leader = read_stat(self.group) if self.group is not None else None
        if leader and leader.start == self.start:
            self.sure = True
        elif leader:
            self.group = None  # somebody else's by now, so of ours nobody is left in it
        ours: list[Stat] = []
        unsure: list[Stat] = []
        for stat, mark in processes:
            if mark == self.marker:
                ours.append(stat)
            elif self.group is not None and stat.group == self.group:
                (ours if self.sure else unsure).append(stat)
        if leader is None and not any(stat.group == self.group for stat in [*ours, *unsure]):
            self.group = None  # it has emptied, so its number is free for others
        return ours, unsure

    def _due(self, stat: Stat, number: int) -> bool:
        """Whether it gets this signal now: a TERM only once, a KILL at every look."""
        if number == signal.SIGKILL:
            return True
        first = (stat.pid, stat.start) not in self.termed and not (self.group_termed and stat.group == self.group)
        self.termed.add((stat.pid, stat.start))
        return first

    def _end_group(self, number: int) -> bool:
        """Without /proc: the group as a whole."""
        if self.group is None or not group_exists(self.group):
            return False
        try:
            if number == signal.SIGKILL or not self.group_termed:
                os.killpg(self.group, number)
                self.group_termed = True
        except ProcessLookupError:
            return False
        except PermissionError:
            self.stuck = f"group {self.group} may not be signalled by this user"
        return True


def group_in_reach(worker: Worker, pid: int | None) -> int | None:
    """The process group that a dead worker recorded, where its number still means the same here."""
    same = worker.boot_id == boot_id() and worker.pid_ns == pid_namespace()
    return pid if same else None


def lock_holders(path: str) -> list[Stat]:
    """Every process that shares the lock on an output file: one that has left the group and cleared
    its environment."""
    try:
        file = os.stat(path)
    except OSError:
        return []
    return [stat for stat in living() if holds_lock(stat, file)]


def live_markers() -> dict[str, int]:
    """marker: pid of every live process that carries one, as far as this user may look."""
    return {mark: stat.pid for stat, mark in scan() if mark}


def _signal(process: Stat, number: int) -> bool:
    """Signal that very process; False where the system refuses. A pidfd pins the process: once it
    is open and the start time still agrees, no recycled pid can be hit."""
    try:
        descriptor = _pin(process.pid)
        try:
            stat = read_stat(process.pid)
            if stat is None or stat.start != process.start:
                return True  # it is gone
            if descriptor is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            if descriptor is not None:
                os.close(descriptor)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _pin(pid: int) -> int | None:
    """A pidfd; None where the system has none, or a container's filter forbids them."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None
