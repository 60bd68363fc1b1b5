"""work: claim jobs and run them."""

from __future__ import annotations

from spoolctl import limits
from spoolctl.language.spec import Flag, Verb
from spoolctl.language.values import Integer, Name
from spoolctl.run import faults
from spoolctl.run.loop import Loop
from spoolctl.run.ownership import refuse_unsafe
from spoolctl.run.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

VERB = Verb(
    "work",
    "claim jobs and run them",
    group="run",
    details=(
        "Start as many workers as you like, anywhere; they need not know of each other, and any of them may die at"
        " any moment. The first INT, TERM or HUP lets what runs finish; the second stops it and puts it back,"
        " without charging its budget."
    ),
    flags=(
        Flag("--jobs", kind=Integer(1, limits.JOBS_MAX), default=1, help="how many to run at once"),
        Flag("--queue", kind=Name(), many=True, help="serve this queue; may be repeated (default: every queue)"),
        Flag("--once", help="run one job at the most, then leave", excludes=("--drain",)),
        Flag("--drain", help="leave when nothing runs, nothing is due and no retry waits"),
        Flag("--trust", help="serve a queue that others can write, and so run commands as you; make one on a network"),
        Flag("--worker-id", kind=Name(), help="the worker's name (default: host, process and a random part)"),
    ),
    examples=[
        ("work &", "serve every queue until told to stop"),
        ("work --jobs 4 --queue default --queue gpu", "run four at once, of two queues"),
        ("work --drain && ./deploy", "go on only where everything succeeded"),
    ],
    mutates=True,
    creates=True,
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """Work until told to stop, or until the queue has settled."""
    mode = "drain" if args.drain else "once" if args.once else "serve"
    queues = tuple(dict.fromkeys(args.queue))
    check_knobs(context)
    if not args.trust:
        refuse_unsafe(context.place())
    database = context.open(create_missing=True, trust=args.trust)
    loop = Loop(database, Plan(args.worker_id, queues, args.jobs, None, mode), context)
    tally = loop.run()
    loop.database.close()
    return {
        "worker": loop.me.name,
        "mode": mode,
        "executed": tally.executed,
        "ended": tally.ended,
        "settled": tally.settled,
        "stopped": tally.stopped,
    }


def check_knobs(context: Context) -> None:
    """A wrong test knob is refused before anything is made."""
    context.heartbeat_interval()
    context.reap_threshold()
    faults.arm(context.environ)


def text(data: dict[str, Any]) -> str:
    """One line: how many, and what became of them."""
    names = {"failed": "failed for now", "queued": "put back"}
    parts = [f"{n} {names.get(state, state)}" for state, n in data["ended"].items() if n]
    return f"executed {data['executed']}" + (f": {', '.join(parts)}" if parts else "") + "\n"


def status(data: dict[str, Any]) -> int:
    """6 where a job that it ran ended dead, 4 where it was stopped before the end."""
    if data["mode"] == "serve":
        return 0
    return 6 if data["ended"]["dead"] else 0 if data["settled"] else 4
