"""workers: who serves what, since when, and whether it lives."""

from __future__ import annotations

from spoolctl.language.spec import Verb
from spoolctl.run import health
from spoolctl.text import duration, printable, short, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

VERB = Verb(
    "workers",
    "show who serves what, and who is alive, hung or dead",
    group="look",
    details=(
        "alive: it holds its lock and its heartbeat is fresh. hung: it holds its lock but does not beat; its jobs stay"
        " with it until it is killed. dead: it is gone, and the next worker takes its jobs back."
    ),
    examples=[("workers", "for people"), ("workers --json", "for programs")],
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """The roll of workers, each judged now."""
    database = context.open(read_only=True)
    with database.read() as tx:
        found = health.workers(tx, database, context)
        warnings = health.warnings(tx, found, context.clock.wall())
    database.close()
    return {"workers": found, "warnings": warnings}


def text(data: dict[str, Any]) -> str:
    """A line a worker."""
    if not data["workers"]:
        return ""
    rows = [
        [
            printable(worker["worker"]),
            worker["state"],
            str(worker["pid"]),
            printable(worker["host"]),
            ",".join(worker["queues"]) or "(every one)",
            f"{len(worker['running'])} of {worker['jobs']}",
            short(worker["started_at"]),
            duration(worker["heartbeat_age"]),
            " ".join(map(str, worker["running"])) or "-",
        ]
        for worker in data["workers"]
    ]
    return table(["worker", "state", "pid", "host", "queues", "busy", "since (UTC)", "heartbeat", "jobs"], rows)
