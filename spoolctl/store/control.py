"""What people and programs do to jobs from outside: cancel, retry. Refusals are decided here.

A running job is only marked: its worker stops it, and the settle gate then moves it. It keeps
its place until its processes are proved gone, so `cancel; retry` can never make two copies.
"""

from __future__ import annotations

from spoolctl.errors import Fail
from spoolctl.states import DONE, MOVES, QUEUED, RUNNING
from spoolctl.store import events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from sqlite3 import Connection

STATE = "SELECT state, key, attempts FROM jobs WHERE id = ?"
MARKED = "SELECT state, stop IS NOT NULL FROM jobs WHERE id = ?"
LAST_SUCCESS = """
SELECT a.number, a.marker FROM jobs AS j JOIN attempts AS a ON a.job = j.id AND a.number = j.attempts
WHERE j.id = ? AND j.state = 'done'
"""
STOP = "UPDATE jobs SET stop = ? WHERE id = ?"
CANCEL = "UPDATE jobs SET state = ?, ready = NULL, finished_at = ?, failure_reason = 'canceled' WHERE id = ?"
RETRY = """
UPDATE jobs SET state = ?, ready = 1, due_at = ?, failures = 0, crashes = 0, finished_at = NULL,
  exit_code = NULL, signal = NULL, failure_reason = NULL, error = NULL
WHERE id = ?
"""
KEY_TAKEN = "SELECT id FROM jobs WHERE key = ? AND id > ? ORDER BY id DESC LIMIT 1"


def cancel(tx: Connection, now: int, job: int, running_too: bool) -> bool:
    """Withdraw a waiting job at once, or mark a running one to be stopped; True for the latter.

    Raises Fail: NOT_FOUND, CONFLICT where it is finished, CONFIRM where it runs and not `running_too`.
    """
    state, _, _ = _job(tx, job)
    if state == RUNNING:
        if not running_too:
            raise Fail("CONFIRM", f"job {job} is running", f"to stop it: spoolctl cancel --running --yes {job}")
        tx.execute(STOP, ("cancel", job))
        return True
    if state not in MOVES["cancel"]:
        again = "retry runs it again" if state != DONE else "retry --force runs it again"
        raise Fail("CONFLICT", f"job {job} is {state}: there is nothing to cancel", again)
    tx.execute(CANCEL, (MOVES["cancel"][state], now, job))
    events.record(tx, now, job, "canceled")
    return False


def retry(tx: Connection, now: int, job: int, force: bool) -> bool:
    """Put a job back with a fresh budget; True where it runs and is marked to be stopped first.

    force: also a done or a running one. Raises Fail: NOT_FOUND, CONFLICT.
    """
    state, key, _ = _job(tx, job)
    newer = tx.execute(KEY_TAKEN, (key, job)).fetchone() if key is not None else None
    if newer:
        raise Fail("CONFLICT", f"job {job}: its key belongs to job {newer[0]} now", f"retry job {newer[0]} instead")
    if state == RUNNING and force:
        tx.execute(STOP, ("retry", job))
        return True
    moves = MOVES["force" if force else "retry"]
    if state not in moves:
        raise Fail("CONFLICT", f"job {job} is {state}", _retry_hint(state, job))
    tx.execute(RETRY, (moves[state], now, job))
    events.record(tx, now, job, "retried")
    return False


def stopping(tx: Connection, jobs: Iterable[int]) -> tuple[dict[int, str], list[int]]:
    """The states of `jobs`, and which of them are marked to be stopped and have not yet."""
    rows = [(job, tx.execute(MARKED, (job,)).fetchone()) for job in jobs]
    return {job: row[0] for job, row in rows if row}, [job for job, row in rows if row and row[1]]


def last_success(tx: Connection, job: int) -> tuple[int, str] | None:
    """(attempt, marker) of a done job, whose background children may still run; None of any other."""
    row: tuple[int, str] | None = tx.execute(LAST_SUCCESS, (job,)).fetchone()
    return row


def _retry_hint(state: str, job: int) -> str:
    if state == QUEUED:
        return "it is in the queue already"
    return f"to {'stop it and ' if state == RUNNING else ''}run it again: spoolctl retry --force {job}"


def _job(tx: Connection, job: int) -> tuple[str, str | None, int]:
    row: tuple[str, str | None, int] | None = tx.execute(STATE, (job,)).fetchone()
    if row is None:
        raise not_found(job)
    return row


def not_found(job: int) -> Fail:
    """There is no such job."""
    return Fail("NOT_FOUND", f"there is no job {job}", "spoolctl list shows the jobs")
