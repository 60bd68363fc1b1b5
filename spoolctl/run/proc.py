"""What the kernel tells of other processes, by /proc (proc(5)); empty or None where there is none.

Everything here is a glance: a process may be gone, or another have its number, at the next moment.
"""

from __future__ import annotations

import os
import time
from errno import EMFILE, ENFILE, ENOMEM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER = b"SPOOLCTL_MARKER="


def _time_shift() -> int:
    """Ticks by which the start times that this process sees are off those of the machine. In a time
    namespace the kernel shifts them (time_namespaces(7)); others could not compare theirs."""
    try:
        with open("/proc/self/timens_offsets", "rb") as file:
            rows = [line.split() for line in file]
        return next(int(row[1]) * os.sysconf("SC_CLK_TCK") for row in rows if row[0] == b"boottime")
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


SHIFT = _time_shift()


class Stat:
    """A line of /proc/PID/stat: state letter, process group, number of threads, kernel start time in ticks
    since the machine's boot."""

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0].decode("ascii")
        self.group = int(fields[2])
        self.threads = int(fields[17])
        self.start = int(fields[19]) - SHIFT
        self.size = int(fields[20])  # 0: a kernel thread, or what has ended

    @property
    def alive(self) -> bool:
        """A zombie has ended, unless only its first thread has: then the others still run."""
        return self.state not in "ZX" or self.threads > 1


def read_stat(pid: int) -> Stat | None:
    """The process's line; None where there is no such process, or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may contain anything; the fields follow its last one.
            return Stat(pid, file.read().rpartition(b")")[2].split())
    except OSError as error:
        not_here(error)
        return None
    except (IndexError, ValueError):
        return None


def not_here(error: OSError) -> None:
    """Raise it again where it says nothing of the process, but that this one can open no more files:
    taken for "not there" it would let a fence open."""
    if error.errno in (EMFILE, ENFILE, ENOMEM):
        raise error


def available() -> bool:
    """Whether this system has a /proc."""
    return os.path.isdir("/proc/self")


def living() -> Iterator[Stat]:
    """Every live process that can be seen, but not this one.

    Listed again until nobody new is found: one that forks after the listing and ends before its own
    line is read would else escape by its child.
    """
    seen = {str(os.getpid())}
    while available():
        fresh = [name for name in os.listdir("/proc") if name.isdigit() and name not in seen]
        if not fresh:
            return
        seen.update(fresh)
        for name in fresh:
            stat = read_stat(int(name))
            if stat and stat.alive:
                yield stat


def scan() -> list[tuple[Stat, str | None]]:
    """Every live process with its marker."""
    return [(stat, marker(stat)) for stat in living()]


def environment(stat: Stat) -> list[bytes]:
    """What the process was started with; empty where it may not be read. It is also empty for some
    microseconds of an execve(2), so it is asked again."""
    for again in range(5):
        readable = False
        for root in _roots(stat):
            try:
                with open(f"{root}/environ", "rb") as file:
                    found = file.read()
                readable = True
            except OSError as error:
                not_here(error)
                continue
            if found:
                return found.split(b"\0")
        if not stat.size or not readable:
            break
        time.sleep(0.0002 * again)
    return []


def marker(stat: Stat) -> str | None:
    """The marker of the attempt that the process belongs to; None where it has none to be seen."""
    for item in environment(stat):
        if item.startswith(MARKER):
            return item[len(MARKER) :].decode("ascii", "replace")
    return None


def holds_lock(stat: Stat, file: os.stat_result) -> bool:
    """Whether the process has a descriptor that carries the exclusive flock of that file. One that
    merely reads the file, or tries its lock for a moment (a shared one), does not count."""
    for root in _roots(stat):
        try:
            for number in os.listdir(f"{root}/fdinfo"):
                with open(f"{root}/fdinfo/{number}", "rb") as info:
                    locked = any(b"FLOCK" in line and b"WRITE" in line for line in info)
                # Inode numbers repeat on other file systems: the descriptor itself tells which file it is.
                if locked and os.path.samestat(os.stat(f"{root}/fd/{number}"), file):
                    return True
        except OSError as error:
            not_here(error)
    return False


def _roots(stat: Stat) -> list[str]:
    """Where to look: of a process whose first thread has ended only the others still tell."""
    root = f"/proc/{stat.pid}"
    if stat.state not in "ZX":
        return [root]
    try:
        return [f"{root}/task/{thread}" for thread in os.listdir(f"{root}/task")]
    except OSError:
        return []
