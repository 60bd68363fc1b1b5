"""cancel: withdraw waiting jobs, or stop running ones."""

from __future__ import annotations

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.language.spec import Argument, Flag, Verb
from spoolctl.language.values import JOB, Duration
from spoolctl.run.bell import ring
from spoolctl.run.settling import wait_until_stopped
from spoolctl.store import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args

WAIT = Flag(
    "--wait",
    kind=Duration(0, limits.WAIT_MAX),
    default=limits.STOP_WAIT,
    help="how long to wait until a running job has stopped",
)
VERB = Verb(
    "cancel",
    "withdraw waiting jobs, or stop running ones",
    group="control",
    details=(
        "All of those named or none. A running job is stopped, with everything it started, by its worker: TERM, and"
        " KILL five seconds later. It counts as canceled only when its processes are gone; cancel waits for that."
    ),
    argument=Argument("ID", JOB, "the numbers of jobs; spoolctl list shows them", many=True),
    flags=(
        Flag("--running", help="also stop jobs that run; needs --yes"),
        Flag("--yes", help="confirm --running"),
        WAIT,
    ),
    examples=[("cancel 7", "a waiting job"), ("cancel --running --yes 7", "a running one")],
    mutates=True,
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """Mark, then wait until the running ones have stopped."""
    ids = list(dict.fromkeys(args.words))
    database = context.open()
    with database.write() as tx:
        now = context.clock.wall()
        stopping = [job for job in ids if control.cancel(tx, now, job, args.running and args.yes)]
    ring(database.place, stop=True)
    ended = wait_until_stopped(database, stopping, context, args.wait) if stopping else {}
    database.close()
    other = [(job, state) for job, state in ended.items() if state != "canceled"]
    for job, state in other:
        why = "it succeeded before it could be stopped" if state == "done" else "somebody wants it to run again"
        raise Fail("CONFLICT", f"job {job} is {state}: {why}", f"spoolctl show {job}")
    return {"canceled": ids, "was_running": stopping}


def text(data: dict[str, Any]) -> str:
    """A line each."""
    return "".join(f"Job {job} canceled\n" for job in data["canceled"])
