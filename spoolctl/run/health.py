"""What needs a look: hung workers, queues that nobody serves, jobs whose processes cannot be ended.

Looks and judges, and mends nothing. Called by `status`, `workers` and `doctor`.
"""

from __future__ import annotations

from spoolctl.run import liveness
from spoolctl.store import claim, recover
from spoolctl.store.workers import in_hand, roll
from spoolctl.text import moment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from sqlite3 import Connection
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.store.database import Database


def workers(tx: Connection, database: Database, context: Context) -> list[dict[str, Any]]:
    """Every worker on the roll, judged now. heartbeat_age: seconds, never negative."""
    now = context.clock.wall()
    return [
        {
            "worker": worker.name,
            "state": liveness.judge(database.place, worker, now, context.reap_threshold()),
            "pid": worker.pid,
            "host": worker.host,
            "queues": list(worker.queues),
            "jobs": worker.jobs,
            "running": [held.job for held in in_hand(tx, worker.id)],
            "started_at": moment(worker.started_at),
            "heartbeat_age": max(0, now - worker.heartbeat_at) / 1000,
        }
        for worker in roll(tx)
    ]


def warnings(tx: Connection, judged: Sequence[dict[str, Any]], now: int) -> list[str]:
    """A line for each thing that somebody should look at, with what to do."""
    return [f"{found}: {remedy}" for found, remedy in findings(tx, judged, now)]


def findings(tx: Connection, judged: Sequence[dict[str, Any]], now: int) -> list[tuple[str, str]]:
    """The same as pairs: what was found, and what to do."""
    found = [
        (
            f"worker {worker['worker']} (process {worker['pid']} on {worker['host']}) hangs; its jobs stay with it",
            "kill it if it does not come back",
        )
        for worker in judged
        if worker["state"] == liveness.HUNG
    ]
    found += [(f"job {job} cannot be taken back: {why}", "end that process") for job, why in recover.stuck(tx)]
    serving = [worker["queues"] for worker in judged if worker["state"] == liveness.ALIVE]
    if not all_served(serving):
        found += [
            (f"no live worker serves queue {queue}, where jobs are due", f"spoolctl work --queue {queue}")
            for queue in claim.due_queues(tx, now)
            if not any(queue in queues for queues in serving)
        ]
    return found


def all_served(serving: Sequence[Sequence[str]]) -> bool:
    """Whether a live worker serves every queue."""
    return any(not queues for queues in serving)
