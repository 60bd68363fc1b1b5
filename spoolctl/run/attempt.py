"""One execution under way, from spawn to proved end: its deadline, its stop, its leftovers.

Never blocks. The loop calls `step` when a child has ended or `next` has come; the outcome appears
only when nothing of the attempt that must go is left. After a success background children are left
alone; after anything else they are ended before the job can run again.
"""

from __future__ import annotations

import os
import signal

from spoolctl.limits import TERM_GRACE
from spoolctl.run.fence import ENDED, Fence
from spoolctl.run.liveness import start_time
from spoolctl.run.overflow import LOOK, Overflow
from spoolctl.run.process import ended, group_exists, signal_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.claim import Claimed
    from spoolctl.store.settle import Outcome

FOREVER = float("inf")
# Why an attempt is stopped: what its outcome is then.
STOPS = {
    "timed_out": ("timed_out", "timeout"),
    "canceled": ("canceled", "canceled"),
    "released": ("released", "worker_stopped"),
    "overflowed": ("failed", "output_limit"),
}


class Attempt:
    """A claimed job's running command. pid: the leader of its group and session.

    output: the path of its output files, less the ending. outcome: None until it is over.
    Times are monotonic seconds.
    """

    def __init__(self, job: Claimed, pid: int, output: str, now: float) -> None:
        self.job, self.pid, self.output = job, pid, output
        self.started = now
        self.deadline = now + job.timeout
        self.overflow: Overflow | None = None
        if job.max_output is not None:
            self.overflow = Overflow(output, job.max_output, job.overflow == "truncate")
        self.next = self._next_look(now)
        self.stopped: str | None = None
        self.kill_at = FOREVER
        self.outcome: Outcome | None = None
        self._left: Outcome | None = None  # how the leader ended, while the fence is at work
        self._fence: Fence | None = None
        self.too_much: str | None = None  # what it wrote over its limit
        self.told: str | None = None  # what of `stuck` the queue knows

    def leader_start(self) -> int | None:
        """The kernel's start time of the leader; ENDED where it has been waited for."""
        return start_time(self.pid) if self._left is None else ENDED

    @property
    def stuck(self) -> str | None:
        """Why its processes cannot be ended; None where they can, or need not."""
        return self._fence.stuck if self._fence else None

    def stop(self, kind: str, now: float) -> None:
        """End it, as a key of STOPS; the first reason stands. TERM now, KILL after the grace."""
        if self.stopped or self._left:
            return
        self.stopped = kind
        self.kill_at = now + TERM_GRACE
        self.next = self.kill_at
        signal_group(self.pid, signal.SIGTERM)

    def _next_look(self, now: float) -> float:
        return min(self.deadline, now + LOOK) if self.overflow else self.deadline

    def step(self, now: float) -> bool:
        """Do what is due; True when it is over and `outcome` says how."""
        if self._left is None:
            self._left = ended(self.pid)
            if self._left is None:
                self._watch(now)
                return False
            self._left.seconds = max(0.0, now - self.started)
            self._measure_output(self._left)
            self._begin_fence(now)
        if self._fence and (now < self._fence.next or not self._fence.step(now)):
            self.next = self._fence.next
            return False
        self.outcome = self._told(self._left)
        return True

    def _watch(self, now: float) -> None:
        """The command still runs."""
        if not self.stopped:
            self.next = self._next_look(now)
            self._look_at_output(now)
        if now >= self.deadline and not self.stopped:
            self.stop("timed_out", now)
        if now >= self.kill_at:
            signal_group(self.pid, signal.SIGKILL)
            self.kill_at = now + TERM_GRACE  # one stuck in the kernel dies when it comes back
            self.next = self.kill_at

    def _look_at_output(self, now: float) -> None:
        try:
            self.too_much = self.overflow.look() if self.overflow else None
        except OSError:
            return  # it is looked at again
        if self.too_much:
            self.stop("overflowed", now)
            self.kill_at = now  # five seconds more could fill the disk

    def _measure_output(self, left: Outcome) -> None:
        """The command has ended: also one that did so between two looks keeps to its limit."""
        try:
            too_much = self.overflow.end() if self.overflow else None
        except OSError as error:
            left.error = f"its output could not be cut: {error.strerror}"
            return
        if too_much and not self.stopped:
            left.kind, left.reason, left.error = "failed", "output_limit", too_much

    def _begin_fence(self, now: float) -> None:
        """Whatever did not succeed may run again, and nothing of it may be left then. The group's
        number is ours while it has a member: its leader was our child until a moment ago."""
        assert self._left is not None
        if self.stopped is None and self._left.kind == "succeeded":
            return
        since = min(now, self.kill_at - TERM_GRACE) if self.stopped else now
        fence = Fence(self.job.marker, self.pid, ENDED, self.output + ".stdout", since)
        fence.group_termed = self.stopped is not None
        fence.sure = group_exists(self.pid)
        if not fence.sure:
            fence.group = None
        self._fence = fence

    def _told(self, left: Outcome) -> Outcome:
        """The outcome as it is recorded: a stop's own reason over what the command made of it."""
        if self.stopped:
            left.kind, left.reason = STOPS[self.stopped]
            left.error = self.too_much or left.error
        left.pid = self.pid
        cuts = [stream.cut_out for stream in self.overflow.streams] if self.overflow else [0, 0]
        left.stdout_cut, left.stderr_cut = cuts
        keep_output(self.output, left)
        return left


def keep_output(output: str, left: Outcome) -> None:
    """Note how much was written, and put it on disk before the result is."""
    left.stdout_bytes, left.stderr_bytes = size_of(output + ".stdout"), size_of(output + ".stderr")
    try:
        sync_outputs(output, left)
    except OSError as error:  # the result stands; that its evidence may be lost is told with it
        left.error = left.error or f"its output could not be put on disk: {error.strerror}"


def size_of(path: str) -> int | None:
    """Bytes; None where the file is gone."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def sync_outputs(output: str, left: Outcome) -> None:
    """Put what was written on disk before the result is, and with it the files' names: POSIX does
    not promise that syncing a new file makes its folder's entry durable."""
    written = [
        path for path, size in ((".stdout", left.stdout_bytes), (".stderr", left.stderr_bytes)) if size
    ]
    for path in [*(output + ending for ending in written), *([os.path.dirname(output)] if written else [])]:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
