"""Starts what was claimed, tells the queue which processes it has become, and holds back for a
while when the machine refuses. Called by `run/loop.py`.
"""

from __future__ import annotations

import os

from spoolctl.run import process
from spoolctl.run.attempt import FOREVER, Attempt
from spoolctl.store import claim
from spoolctl.text import command_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from spoolctl.context import Context
    from spoolctl.store.claim import Claimed
    from spoolctl.store.database import Database
    from spoolctl.store.settle import Outcome

NOTE_AFTER = 0.05  # seconds
HOLD_BACK_MAX = 30.0  # seconds; longest pause after the machine refused to start a command


class Launch:
    """held_until: no claim before; monotonic seconds. unnoted: started, and not yet in the queue."""

    def __init__(self, context: Context, point: Callable[[str], None]) -> None:
        process.close_inherited()
        self.clock, self.say, self.point = context.clock, context.say, point
        self.base = {os.fsencode(name): os.fsencode(value) for name, value in context.environ.items()}
        self.home = _here()
        self.unnoted: list[Attempt] = []
        self.held_until = 0.0
        self._hold_back = 0.0
        self._programs: process.Programs = {}

    def forget_programs(self) -> None:
        """Look programs up anew: one may have been installed or moved."""
        self._programs.clear()

    def start(self, database: Database, job: Claimed) -> Attempt | Outcome:
        """The command under way, or the outcome of not having been started: the job's fault is its
        result, the machine's fault puts it back and makes us hold back."""
        output = database.place.output(database.queue_id, job.job, job.attempt)
        try:
            pid = process.spawn(job, self.base, self.home, output, self._programs)
        except process.NotStarted as failed:
            if failed.outcome.kind == "released":
                self._wait_for_machine(failed.outcome)
            return failed.outcome
        self.point("spawned")
        self._hold_back = 0.0
        attempt = Attempt(job, pid, output, self.clock.monotonic())
        self.unnoted.append(attempt)
        self.say(f"job {job.job} attempt {job.attempt} started: {command_line(job.argv, 80)}")
        return attempt

    def _wait_for_machine(self, outcome: Outcome) -> None:
        self._hold_back = min(HOLD_BACK_MAX, self._hold_back * 2 or 1.0)
        self.held_until = self.clock.monotonic() + self._hold_back
        self.say(f"the machine refuses to start commands ({outcome.error}); waiting {self._hold_back:.0f}s")

    def note_at(self) -> float:
        """When `note` has something to do; monotonic seconds."""
        return self.unnoted[0].started + NOTE_AFTER if self.unnoted else FOREVER

    def note(self, database: Database) -> None:
        """Put the processes where a successor will look for them. No sync: a power cut that takes
        this note takes the processes as well.

        Commands that end at once need no note, so it waits a moment. Until then the marker and the
        output's lock, which are there before the command is, lead to the processes.
        """
        if self.clock.monotonic() < self.note_at():
            return
        running = [attempt for attempt in self.unnoted if attempt.outcome is None]
        if running:
            with database.write(sync=False) as tx:
                for attempt in running:
                    job = attempt.job
                    claim.record_spawn(tx, job.job, job.attempt, attempt.pid, attempt.leader_start())
        self.unnoted = []
        self.point("recorded")


def _here() -> int:
    """A descriptor of the worker's directory; -1 where it is closed to it. Then only jobs with a
    --cwd can be started, and the others are told why."""
    try:
        return os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
