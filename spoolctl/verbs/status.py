"""status: how many jobs are in which state, and what needs a look."""

from __future__ import annotations

from spoolctl.language.spec import Verb
from spoolctl.run import health
from spoolctl.run.liveness import STATES as WORKER_STATES
from spoolctl.states import JOB_STATES
from spoolctl.store import read
from spoolctl.text import command_line, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

VERB = Verb(
    "status",
    "count the jobs, and show what needs a look",
    group="look",
    examples=[("status", "for people"), ("status --json", "for programs")],
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """Counts, from kept sums; the cost does not depend on how many jobs there are."""
    database = context.open(read_only=True)
    with database.read() as tx:
        queues = read.counts(tx)
        settings = read.settings(tx)
        dead = read.recent_dead(tx)
        workers = health.workers(tx, database, context)
        warnings = health.warnings(tx, workers, context.clock.wall())
    database.close()
    return {
        "counts": {state: sum(of[state] for of in queues.values()) for state in JOB_STATES},
        "recent_dead": dead,
        "queues": [
            {"queue": name, **of, **dict(zip(("slots", "paused"), settings.get(name, (None, False))))}
            for name, of in queues.items()
        ],
        "workers": {state: sum(worker["state"] == state for worker in workers) for state in WORKER_STATES},
        "warnings": warnings,
    }


def text(data: dict[str, Any]) -> str:
    """The fixed line; then the queues where there are several, and the jobs that died last."""
    counts = data["counts"]
    shown = ["queued", "running", "done", "failed", "dead"]
    lines = "   ".join(f"{state}: {counts[state]}" for state in shown) + "\n"
    if counts["canceled"]:
        shown.append("canceled")
        lines += f"canceled: {counts['canceled']}\n"
    if len(data["queues"]) > 1:
        rows = [[q["queue"], *(str(q[state]) for state in shown)] for q in data["queues"]]
        lines += "\n" + table(["queue", *shown], rows)
    if data["recent_dead"]:
        rows = [
            [str(job["id"]), job["failure_reason"] or "", job["finished_at"] or "", command_line(job["argv"], 60)]
            for job in data["recent_dead"]
        ]
        lines += "\n" + table(["dead", "reason", "at", "command"], rows)
    return lines
