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
from spoolctl.run.liveness import boot_id, lock_held, pid_namespace, read_stat
from spoolctl.run.process import group_exists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.workers import Worker

MARKER = b"SPOOLCTL_MARKER="
# In the place of a leader's start time: it has been waited for, so whoever has its number now is another.
ENDED = -1
LOOK_AGAIN = 0.05  # seconds between two looks while something is being ended


class Fence:
    """One attempt whose processes are to be ended.

    marker: its SPOOLCTL_MARKER. group: its process group, None where it was never recorded or
    means nothing here. start: the kernel's start time of the group's leader. output: the path of
    its stdout file. termed: the group has had its TERM, at `since` (monotonic seconds).
    """

    def __init__(
        self, marker: str, group: int | None, start: int | None, output: str, since: float, termed: bool = False
    ) -> None:
        self.marker, self.group, self.start, self.output = marker, group, start, output
        self.kill_at = since + TERM_GRACE
        self.next = since
        self.termed: set[tuple[int, int]] = set()
        self.group_termed = termed
        self.stuck: str | None = None

    def step(self, now: float) -> bool:
        """Do what is due; True when nothing of the attempt is left. now: monotonic seconds."""
        self.next = now + LOOK_AGAIN
        self.stuck = None
        number = signal.SIGKILL if now >= self.kill_at else signal.SIGTERM
        if os.path.isdir("/proc/self"):
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
        """Signal each surviving process, through a pidfd where there is one; whether there was any."""
        survivors = find_processes(self.marker, self.group, self.start)
        if not survivors and lock_held(self.output):
            survivors = lock_holders(self.output)
        refused = []
        for pid, start, in_group in survivors:
            if number == signal.SIGTERM and ((pid, start) in self.termed or (in_group and self.group_termed)):
                continue
            self.termed.add((pid, start))
            if not _signal(pid, start, number):
                refused.append(pid)
        if refused:
            self.stuck = f"process {refused[0]} may not be signalled by this user"
        return bool(survivors)

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


def find_processes(marker: str, group: int | None, start: int | None) -> list[tuple[int, int, bool]]:
    """(pid, start time, in the group) of every live process of an attempt, but not this one.

    In the group counts where the group is the attempt's: its number cannot be given to a new
    leader while a member lives, so a leader of another start time, or a member older than the
    recorded leader, is a stranger's.
    """
    needle = MARKER + marker.encode()
    if group is not None:
        leader = read_stat(group)
        if leader and start is not None and leader.start != start:
            group = None
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        pid = int(name)
        stat = read_stat(pid)
        if stat is None or stat.state in "ZX":
            continue
        in_group = group is not None and stat.group == group and (start is None or stat.start >= start)
        if in_group or needle in _environment(pid):
            found.append((pid, stat.start, in_group))
    return found


def lock_holders(path: str) -> list[tuple[int, int, bool]]:
    """(pid, start time, False) of every process that shares the lock on an output file: one that has
    left the group and cleared its environment. Somebody who merely reads the file has no lock.

    /proc/PID/fdinfo names a descriptor's locks: proc(5).
    """
    try:
        inode = b":%d " % os.stat(path).st_ino
    except OSError:
        return []
    found = []
    for name in os.listdir("/proc"):
        stat = read_stat(int(name)) if name.isdigit() and int(name) != os.getpid() else None
        if stat and any(b"FLOCK" in info and inode in info for info in _descriptors(name)):
            found.append((int(name), stat.start, False))
    return found


def _descriptors(pid: str) -> list[bytes]:
    """What the kernel tells of each descriptor of a process; empty where it may not be asked."""
    told = []
    try:
        for number in os.listdir(f"/proc/{pid}/fdinfo"):
            with open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:
                told.append(file.read())
    except OSError:
        pass
    return told


def live_markers() -> dict[str, int]:
    """marker: pid of every live process that carries one, as far as this user may look."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        for item in _environment(int(name)) if name.isdigit() else []:
            stat = read_stat(int(name)) if item.startswith(MARKER) else None
            if stat and stat.state not in "ZX":
                found[item[len(MARKER) :].decode("ascii", "replace")] = int(name)
    return found


def _environment(pid: int) -> list[bytes]:
    """What the process was started with; empty where it may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _signal(pid: int, start: int, number: int) -> bool:
    """Signal that very process; False where the system refuses. A pidfd pins the process: once it
    is open and the start time still agrees, no recycled pid can be hit."""
    try:
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            os.kill(pid, number)
            return True
        descriptor = os.pidfd_open(pid)
        try:
            stat = read_stat(pid)
            if stat is not None and stat.start == start:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    except OSError:  # a kernel without pidfds
        os.kill(pid, number)
    return True
