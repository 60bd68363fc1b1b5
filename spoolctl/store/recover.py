"""Takes the jobs of dead workers back. Never while anything of the old attempt may still run.

The caller has proved two things before it comes here: the worker is dead (`run/liveness.py`),
and so is every process of the attempt (the fence). What was true at that proof is checked again
inside the transaction: another peer may have been faster.
"""

from __future__ import annotations

from spoolctl.store import workers
from spoolctl.store.settle import Outcome, settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

NOTE_STUCK = "UPDATE attempts SET stuck = ? WHERE job = ? AND number = ? AND state = 'running'"
STUCK = """
SELECT j.id, a.stuck FROM jobs AS j JOIN attempts AS a ON a.job = j.id AND a.number = j.attempts
WHERE j.state = 'running' AND a.stuck IS NOT NULL ORDER BY j.id
"""


def reap(tx: Connection, now: int, job: int, attempt: int, worker: int) -> str | None:
    """Requeue (or bury) the job of a dead worker's attempt; its new state, or None where somebody
    else has settled it."""
    return settle(tx, now, job, attempt, worker, Outcome("abandoned", "worker_crash", "the worker died"))


def note_stuck(tx: Connection, job: int, attempt: int, why: str | None) -> None:
    """Say in the queue why a running attempt's processes cannot be ended; None: they can again."""
    tx.execute(NOTE_STUCK, (why, job, attempt))


def stuck(tx: Connection) -> list[tuple[int, str]]:
    """(job, why) of every running attempt whose processes cannot be ended."""
    return tx.execute(STUCK).fetchall()


def strike_out(tx: Connection, worker: int) -> bool:
    """Take a dead worker that has nothing in hand off the roll."""
    return workers.leave(tx, worker)
