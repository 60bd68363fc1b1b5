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
from spoolctl.run.proc import available, holds_lock, living, marker, read_stat
from spoolctl.run.process import group_exists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.run.proc import Stat
    from spoolctl.store.workers import Worker

# In the place of a leader's start time: it has been waited for, so whoever has its number now is another.
ENDED = -1
LOOK_AGAIN = 0.05  # seconds between two looks while something is being ended


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

    def step(self, now: float) -> bool:
        """Do what is due; True when nothing of the attempt is left. now: monotonic seconds."""
        self.next = now + LOOK_AGAIN
        self.stuck = None
        number = signal.SIGKILL if now >= self.kill_at else signal.SIGTERM
        if available():
            left = self._end_processes(number)
        else:
            left = self._end_group(number)
        if left:
            return False
        if lock_held(self.output):
            self.stuck = "a process that cannot be seen from here still holds its output"
            return False
        return True

    def _end_processes(self, number: int) -> bool:
        """Signal each surviving process; whether there was any."""
        ours, unsure = self._find()
        if not ours and not unsure and lock_held(self.output):
            ours = lock_holders(self.output)
        refused = [stat.pid for stat in ours if self._due(stat, number) and not _signal(stat, number)]
        if refused:
            self.stuck = f"process {refused[0]} may not be signalled by this user"
        elif unsure and not ours:
            self.stuck = f"process {unsure[0].pid} may belong to it, or be a stranger that has its group's number"
        return bool(ours or unsure)

    def _find(self) -> tuple[list[Stat], list[Stat]]:
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
        for stat in living():
            if marker(stat) == self.marker:
                ours.append(stat)
            elif self.group is not None and stat.group == self.group:
                (ours if self.sure else unsure).append(stat)
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
    return {found: stat.pid for stat in living() for found in [marker(stat)] if found}


def _signal(process: Stat, number: int) -> bool:
    """Signal that very process; False where the system refuses. A pidfd pins the process: once it
    is open and the start time still agrees, no recycled pid can be hit."""
    try:
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            os.kill(process.pid, number)
            return True
        descriptor = os.pidfd_open(process.pid)
        try:
            stat = read_stat(process.pid)
            if stat is not None and stat.start == process.start:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    except OSError:  # a kernel without pidfds
        os.kill(process.pid, number)
    return True
