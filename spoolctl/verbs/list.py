"""list: find jobs."""

from __future__ import annotations

from spoolctl import limits
from spoolctl.language.spec import Flag, Verb
from spoolctl.language.values import Choice, Integer, Name, Tag, Text
from spoolctl.states import JOB_STATES, WAITING
from spoolctl.store import read
from spoolctl.text import command_line, short, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

VERB = Verb(
    "list",
    "find jobs, the newest first",
    group="look",
    details="Of the environment only the names are shown; 'show' has the values.",
    flags=(
        Flag("--state", kind=Choice(tuple(JOB_STATES), "STATE"), many=True, help="in this state; may be repeated"),
        Flag("--queue", kind=Name(), many=True, help="in this queue; may be repeated"),
        Flag(
            "--tag",
            kind=Tag(limits.TAG_NAME_MAX, limits.TAG_VALUE_MAX, "K=V"),
            many=True,
            help="with this tag; where repeated, with all of them",
        ),
        Flag("--key", kind=Text(limits.KEY_MAX, "KEY", 1), help="submitted under this key"),
        Flag("--limit", kind=Integer(1, limits.LIST_MAX), default=limits.LIST_DEFAULT, help="this many at the most"),
    ),
    examples=[("list --state dead", "what failed for good"), ("list --tag batch=7 --json", "a batch, for a program")],
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """The newest jobs that match. One more than the limit is looked for, to say whether there are more."""
    database = context.open(read_only=True)
    with database.read() as tx:
        ids = read.find(tx, args.limit + 1, args.state, args.queue, args.tag, args.key)
        found = read.jobs(tx, ids[: args.limit])
    database.close()
    return {"jobs": found, "more": len(ids) > args.limit}


def text(data: dict[str, Any]) -> str:
    """A line a job."""
    if not data["jobs"]:
        return ""
    rows = [
        [
            str(job["id"]),
            job["state"],
            job["queue"],
            runs(job),
            short(job["created_at"]),
            short(job["due_at"]) if job["state"] in WAITING and job["due_at"] != job["created_at"] else "-",
            command_line(job["argv"], 80),
        ]
        for job in data["jobs"]
    ]
    more = "(there are more: --limit N shows them)\n" if data["more"] else ""
    return table(["id", "state", "queue", "failures", "created (UTC)", "due (UTC)", "command"], rows) + more


def runs(job: dict[str, Any]) -> str:
    """`2 of 4 runs`: failures so far, and how many executions the job may fail in."""
    return f"{job['failures']} of {job['max_retries'] + 1} runs" if job["failures"] else "-"
