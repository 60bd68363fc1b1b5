"""retry: put finished jobs back into the queue."""

from __future__ import annotations

from spoolctl.errors import Fail
from spoolctl.language.spec import Argument, Flag, Verb
from spoolctl.language.values import JOB
from spoolctl.run.bell import ring
from spoolctl.run.settling import end_leftovers, wait_until_stopped
from spoolctl.store import control
from spoolctl.verbs.cancel import WAIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.language.parse import Args
    from spoolctl.store.database import Database

VERB = Verb(
    "retry",
    "put jobs back, with a fresh budget",
    group="control",
    details=(
        "Works on dead, canceled and failed jobs, all of those named or none. History and output of earlier attempts"
        " are kept. With --force also on done ones, and on running ones: those are stopped first, and run again only"
        " when nothing of the old attempt is left."
    ),
    argument=Argument("ID", JOB, "the numbers of jobs; spoolctl list shows them", many=True),
    flags=(Flag("--force", help="also jobs that are done or running"), WAIT),
    examples=[("retry 7", "a dead job"), ("retry --force 7 8", "whatever they are doing")],
    mutates=True,
)


def run(args: Args, context: Context) -> dict[str, Any]:
    """All or none. What succeeded may have left children behind, which are ended first; so may what
    succeeded just before it could be stopped, and then comes here a second time."""
    database = context.open()
    ids = list(dict.fromkeys(args.words))
    stopping, ended = _put_back(database, ids, args, context)
    faster = [job for job, state in ended.items() if state == "done"]
    if faster:
        _, again = _put_back(database, faster, args, context)
        ended.update(again)
    database.close()
    for job, state in ended.items():
        if state == "canceled":
            raise Fail("CONFLICT", f"job {job} was canceled meanwhile", f"spoolctl retry {job} puts it back")
    return {"retried": ids, "was_running": stopping}


def _put_back(
    database: Database, ids: list[int], args: Args, context: Context
) -> tuple[list[int], dict[int, str]]:
    """Those that ran, and the state in which each of them was when it had stopped."""
    if args.force:
        end_leftovers(database, ids, context, args.wait)
    with database.write() as tx:
        now = context.clock.wall()
        stopping = [job for job in ids if control.retry(tx, now, job, args.force)]
    ring(database.place, stop=True)
    return stopping, wait_until_stopped(database, stopping, context, args.wait) if stopping else {}


def text(data: dict[str, Any]) -> str:
    """The fixed line, for each."""
    return "".join(f"Job {job} requeued\n" for job in data["retried"])
