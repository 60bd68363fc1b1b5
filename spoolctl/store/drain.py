"""Whether the served queues have settled: nothing runs, nothing is due, no retry waits.

Jobs that their submitter delayed, and those of paused queues, do not hold a drain.
"""

from __future__ import annotations

from spoolctl.store.read import counts, settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from sqlite3 import Connection

READY = "SELECT 1 FROM jobs WHERE ready = 1 AND queue = ? LIMIT 1"
DUE = "SELECT 1 FROM jobs WHERE ready = 0 AND due_at <= ? AND queue = ? LIMIT 1"


def settled(tx: Connection, now: int, queues: Collection[str]) -> bool:
    """Whether a drain of `queues` (empty: all of them) may end."""
    known = settings(tx)
    for queue, of in counts(tx).items():
        if queues and queue not in queues:
            continue
        if of["running"]:
            return False
        if known.get(queue, (None, False))[1]:
            continue
        if of["failed"] or (of["queued"] and _due(tx, now, queue)):
            return False
    return True


def _due(tx: Connection, now: int, queue: str) -> bool:
    return bool(tx.execute(READY, (queue,)).fetchone() or tx.execute(DUE, (now, queue)).fetchone())
