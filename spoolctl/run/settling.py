"""Waits until running jobs have stopped: for `cancel`, whose answer is true only then."""

from __future__ import annotations

from spoolctl.errors import Fail
from spoolctl.run.doorbell import Ear
from spoolctl.store import control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from spoolctl.context import Context
    from spoolctl.store.database import Database

POLL = 0.25  # seconds between looks where no bell is heard


def wait_until_stopped(database: Database, jobs: Sequence[int], context: Context, seconds: float) -> dict[int, str]:
    """The state of each of `jobs` once none of them is marked to be stopped any more.

    Raises Fail("TIMED_OUT") after `seconds`: the mark stays, and the job is stopped later.
    """
    deadline = context.clock.monotonic() + seconds
    with Ear(database.place) as ear:
        while True:
            with database.read() as tx:
                states, waiting = control.stopping(tx, jobs)
            if not waiting:
                return states
            left = deadline - context.clock.monotonic()
            if left <= 0:
                raise Fail("TIMED_OUT", f"job {waiting[0]} is still being stopped", "it stays marked; call again to wait on")
            ear.listen(min(left, POLL))
