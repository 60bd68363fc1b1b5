"""What the fence has to say of a dead worker's attempts, and the worker's line when nothing of it is left.

Their jobs are taken back by `settle`, and never while anything of the old attempt may still run. The
caller (`run/reaper.py`) has proved two things before it comes there: the worker is dead, and so is every
process of the attempt.
"""

from __future__ import annotations

from spoolctl.store import workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

NOTE_STUCK = "UPDATE attempts SET stuck = ? WHERE job = ? AND number = ? AND state = 'running'"
STUCK = """
SELECT j.id, a.stuck FROM jobs AS j JOIN attempts AS a ON a.job = j.id AND a.number = j.attempts
WHERE j.state = 'running' AND a.stuck IS NOT NULL ORDER BY j.id
"""


def note_stuck(tx: Connection, job: int, attempt: int, why: str | None) -> None:
    """Say in the queue why a running attempt's processes cannot be ended; None: they can again."""
    tx.execute(NOTE_STUCK, (why, job, attempt))


def stuck(tx: Connection) -> list[tuple[int, str]]:
    """(job, why) of every running attempt whose processes cannot be ended."""
    return tx.execute(STUCK).fetchall()


def strike_out(tx: Connection, worker: int) -> bool:
    """Take a dead worker that has nothing in hand off the roll."""
    return workers.leave(tx, worker)
