"""The one gate through which every attempt ends: success, failure, timeout, crash, cancel, release.

It refuses what is no longer the caller's: a result never lands on somebody else's claim. Budgets,
backoff and dead-letter are decided here and nowhere else. Called by the worker's turn, by
`recover`, and by `control` for jobs whose worker is gone.
"""

from __future__ import annotations

from spoolctl.limits import backoff
from spoolctl.states import DEAD, FAILED, MOVES, OUTCOMES, QUEUED, RUNNING, TERMINAL
from spoolctl.store import events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

HELD = """
SELECT j.state, j.worker, j.attempts, j.stop, j.failures, j.crashes, j.max_retries, j.max_crashes, a.worker
FROM jobs AS j JOIN attempts AS a ON a.job = j.id AND a.number = j.attempts WHERE j.id = ?
"""
END_ATTEMPT = """
UPDATE attempts SET state = ?, pid = COALESCE(?, pid), finished_at = ?,
  seconds = ?, user_seconds = ?, system_seconds = ?, peak_memory = ?,
  exit_code = ?, signal = ?, failure_reason = ?, error = ?, stuck = NULL,
  stdout_bytes = ?, stderr_bytes = ?, stdout_cut = ?, stderr_cut = ?
WHERE job = ? AND number = ?
"""
END_JOB = """
UPDATE jobs SET state = ?, ready = ?, stop = NULL, worker = NULL, failures = ?, crashes = ?, finished_at = ?,
  due_at = COALESCE(?, due_at), exit_code = ?, signal = ?, failure_reason = ?, error = ?
WHERE id = ?
"""


RECORDED = """
SELECT j.state FROM attempts AS a JOIN jobs AS j ON j.id = a.job
WHERE a.job = ? AND a.number = ? AND a.worker = ? AND a.state <> 'running'
"""


class Outcome:
    """How an attempt ended. kind: a key of `states.OUTCOMES`. The rest is None where unknown.

    reason: a key of `states.REASONS`. signal: its name. seconds: by a monotonic clock.
    peak_memory, the sizes of the output and what was cut out of it: bytes.
    """

    def __init__(self, kind: str, reason: str | None = None, error: str | None = None) -> None:
        self.kind, self.reason, self.error = kind, reason, error
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.signal: str | None = None
        self.seconds: float | None = None
        self.user_seconds: float | None = None
        self.system_seconds: float | None = None
        self.peak_memory: int | None = None
        self.stdout_bytes: int | None = None
        self.stderr_bytes: int | None = None
        self.stdout_cut: int | None = None
        self.stderr_cut: int | None = None


def settle(tx: Connection, now: int, job: int, attempt: int, worker: int, outcome: Outcome) -> str | None:
    """End the attempt and move its job; the job's new state.

    None, and nothing changed, where the attempt is not `worker`'s any more.
    """
    row = tx.execute(HELD, (job,)).fetchone()
    if row is None or row[:3] != (RUNNING, worker, attempt):
        return None
    stop, failures, crashes, max_retries, max_crashes, name = row[3:]
    kind, reason = outcome.kind, outcome.reason
    if stop and kind != "succeeded":  # what was to be stopped is not tried again, however it ended
        kind, reason = "canceled", "canceled"
    action, budget, event = OUTCOMES[kind]
    failures += budget == "failures"
    crashes += budget == "crashes"
    if failures > max_retries or (max_crashes is not None and crashes > max_crashes):
        action = "bury" if budget else action
    if stop == "retry" and kind == "canceled":
        action, failures, crashes = "release", 0, 0
    state = MOVES[action][RUNNING]

    _end_attempt(tx, now, job, attempt, outcome, "abandoned" if kind == "released" else kind, reason)
    due = now + 1000 * backoff(failures + crashes) if state == FAILED else now if state == QUEUED else None
    ready = 0 if state == FAILED else 1 if state == QUEUED else None
    finished = now if state in TERMINAL else None
    # A job that is queued again has not failed; what its attempts came to stays with them.
    ending = (None,) * 4 if state == QUEUED else (outcome.exit_code, outcome.signal, reason, storable(outcome.error))
    tx.execute(END_JOB, (state, ready, failures, crashes, finished, due, *ending, job))
    events.record(tx, now, job, event, attempt, name, reason)
    if state == DEAD:
        events.record(tx, now, job, "dead", attempt, name, reason)
    if stop == "retry" and state == QUEUED:
        events.record(tx, now, job, "retried")
    return state


def recorded(tx: Connection, job: int, attempt: int, worker: str) -> str | None:
    """The job's state, where the attempt of the worker of that name has ended in the queue already."""
    row = tx.execute(RECORDED, (job, attempt, worker)).fetchone()
    return row[0] if row else None


def _end_attempt(
    tx: Connection, now: int, job: int, attempt: int, outcome: Outcome, state: str, reason: str | None
) -> None:
    measured = (outcome.seconds, outcome.user_seconds, outcome.system_seconds, outcome.peak_memory)
    ending = (outcome.exit_code, outcome.signal, reason, storable(outcome.error))
    sizes = (outcome.stdout_bytes, outcome.stderr_bytes, outcome.stdout_cut, outcome.stderr_cut)
    tx.execute(END_ATTEMPT, (state, outcome.pid, now, *measured, *ending, *sizes, job, attempt))


def storable(error: str | None) -> str | None:
    """An error may name a path that is not UTF-8. As SQLite's text it would be refused, and with it the end
    of the attempt, by every worker in turn."""
    return error and error.encode("utf-8", "backslashreplace").decode("utf-8")
