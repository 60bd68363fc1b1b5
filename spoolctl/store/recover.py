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


def reap(tx: Connection, now: int, job: int, attempt: int, worker: int) -> str | None:
    """Requeue (or bury) the job of a dead worker's attempt; its new state, or None where somebody
    else has settled it."""
    return settle(tx, now, job, attempt, worker, Outcome("abandoned", "worker_crash", "the worker died"))


def strike_out(tx: Connection, worker: int) -> bool:
    """Take a dead worker that has nothing in hand off the roll."""
    return workers.leave(tx, worker)
