"""What has ended, or was never started, and is not yet in the queue. It is kept until it is. Called by
`run/loop.py`, inside its transactions and after them.
"""

from __future__ import annotations

from spoolctl.store.settle import recorded, settle
from spoolctl.text import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from sqlite3 import Connection

    from spoolctl.run.plan import Tally
    from spoolctl.store.claim import Claimed
    from spoolctl.store.settle import Outcome
    from spoolctl.store.workers import Worker


class Results:
    """waiting: (job, how it ended) of what is to be recorded, in the order in which it ended."""

    def __init__(self, me: Worker, tally: Tally, say: Callable[[str], None]) -> None:
        self.me, self.tally, self.say = me, tally, say
        self.waiting: list[tuple[Claimed, Outcome]] = []

    def settle(self, tx: Connection, now: int) -> list[str | None]:
        """Record all of it; the new states of the jobs, in order. It stays here until `told`."""
        return [settle(tx, now, job.job, job.attempt, self.me.id, how) for job, how in self.waiting]

    def told(self, states: list[str | None]) -> None:
        """After the COMMIT: what was recorded is off our hands."""
        settled, self.waiting = self.waiting[: len(states)], self.waiting[len(states) :]
        for (job, outcome), state in zip(settled, states):
            self._tell(job, outcome, state)

    def found(self, tx: Connection) -> list[str | None]:
        """After a COMMIT that failed: for each whether it is there all the same, and then the job's state."""
        return [recorded(tx, job.job, job.attempt, self.me.name) for job, _ in self.waiting]

    def told_found(self, states: list[str | None]) -> None:
        """After the COMMIT that has synced what was found."""
        found = [(*one, state) for one, state in zip(self.waiting, states) if state]
        self.waiting = [one for one, state in zip(self.waiting, states) if not state]
        for job, outcome, state in found:
            self._tell(job, outcome, state)

    def _tell(self, job: Claimed, outcome: Outcome, state: str | None) -> None:
        if state is None:
            self.say(f"job {job.job}: its result came too late and is discarded: it is not this worker's any more")
            return
        self.tally.executed += outcome.reason != "spawn_failed" or outcome.kind == "failed"
        self.tally.ended[state] += 1
        self.say(f"job {job.job} attempt {job.attempt} {ending(outcome)}; the job is {state}")


def ending(outcome: Outcome) -> str:
    """How an attempt ended, for the log."""
    code = None if outcome.exit_code is None else f"exit {outcome.exit_code}"
    how = "; ".join(part for part in (outcome.signal or code, outcome.error) if part)
    took = f" after {duration(outcome.seconds)}" if outcome.seconds is not None else ""
    return f"{outcome.kind.replace('_', ' ')}{f' ({how})' if how else ''}{took}"
