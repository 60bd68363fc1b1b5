"""The append-only ledger: one line for each thing that happened to a job."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

RECORD = "INSERT INTO events (at, job, event, attempt, worker, detail) VALUES (?, ?, ?, ?, ?, ?)"
OF_JOB = "SELECT seq, at, event, attempt, worker, detail FROM events WHERE job = ? ORDER BY seq"


def record(
    tx: Connection,
    now: int,
    job: int,
    event: str,
    attempt: int | None = None,
    worker: str | None = None,
    detail: str | None = None,
) -> None:
    """Add one line. event: a word of `states.EVENTS`. worker: its name."""
    tx.execute(RECORD, (now, job, event, attempt, worker, detail))


def of_job(tx: Connection, job: int) -> list[tuple[int, int, str, int | None, str | None, str | None]]:
    """(seq, at, event, attempt, worker, detail) of everything that happened to `job`, in order."""
    return tx.execute(OF_JOB, (job,)).fetchall()
