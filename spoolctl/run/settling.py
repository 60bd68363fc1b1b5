"""Waits until running jobs have stopped, for `cancel` and `retry --force`: their answer is true only then.

A living worker stops its own jobs. Where the worker is dead, stopped (SIGSTOP) or hung, the
waiting process fences the attempt from outside and settles it through the same gate.
"""

from __future__ import annotations

from spoolctl.errors import Fail
from spoolctl.run import liveness
from spoolctl.run.bell import ring
from spoolctl.run.doorbell import Ear
from spoolctl.run.fence import Fence
from spoolctl.run.reaper import Case
from spoolctl.store import control, workers
from spoolctl.store.settle import settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from spoolctl.context import Context
    from spoolctl.store.database import Database
    from spoolctl.store.workers import Held, Worker

POLL = 0.25  # seconds between looks where no bell is heard


def wait_until_stopped(database: Database, jobs: Sequence[int], context: Context, seconds: float) -> dict[int, str]:
    """The state of each of `jobs` once none of them is marked to be stopped any more.

    Raises Fail("TIMED_OUT") after `seconds`: the mark stays, and the job is stopped later.
    """
    clock = context.clock
    deadline = clock.monotonic() + seconds
    cases: dict[int, Case] = {}
    with Ear(database.place) as ear:
        while True:
            with database.read() as tx:
                states, waiting = control.stopping(tx, jobs)
                holders = {job: workers.holder(tx, job) for job in waiting}
            if not waiting:
                return states
            for job, found in holders.items():
                if found and job not in cases:
                    why = _needs_help(database, *found, context)
                    if why:
                        cases[job] = Case(database, *found, clock.monotonic())
                        cases[job].why = why
            if _settle_proved(database, cases, context):
                continue
            left = deadline - clock.monotonic()
            if left <= 0:
                raise _late(waiting[0], cases)
            ear.listen(min([left, POLL, *(case.fence.next - clock.monotonic() for case in cases.values())]))


def end_leftovers(database: Database, jobs: Sequence[int], context: Context, seconds: float) -> None:
    """End what successful attempts of `jobs` have left running: before they run again, nothing of the
    old attempt may be alive. Raises Fail("TIMED_OUT") after `seconds`."""
    clock = context.clock
    with database.read() as tx:
        found = [(job, control.last_success(tx, job)) for job in jobs]
    fences = {}
    for job, last in found:
        if last:
            output = database.place.output(database.queue_id, job, last[0]) + ".stdout"
            fences[job] = Fence(last[1], None, None, output, clock.monotonic())
    deadline = clock.monotonic() + seconds
    while True:
        now = clock.monotonic()
        fences = {job: fence for job, fence in fences.items() if now < fence.next or not fence.step(now)}
        if not fences:
            return
        if now >= deadline:
            job, fence = next(iter(fences.items()))
            why = fence.stuck or "its last attempt has left processes that do not end"
            raise Fail("TIMED_OUT", f"job {job} is not put back: {why}", "end them, then try again")
        context.clock.sleep(min(fence.next for fence in fences.values()) - now)


def _needs_help(database: Database, worker: Worker, held: Held, context: Context) -> str:
    """Why the worker cannot stop its job by itself; "" where it can.

    One that lives may still be about to start the command, unless it has recorded the start: then
    it is left alone, or the command would begin behind a `canceled`.
    """
    state = liveness.judge(database.place, worker, context.clock.wall(), context.reap_threshold())
    if state == liveness.DEAD:
        return "the worker died"
    hangs = held.pid is not None and (state == liveness.HUNG or liveness.is_stopped(worker))
    return "it was ended from outside: its worker hangs" if hangs else ""


def _settle_proved(database: Database, cases: dict[int, Case], context: Context) -> bool:
    """Settle what is proved to be gone; whether there was any."""
    now = context.clock.monotonic()
    proved = [job for job, case in cases.items() if now >= case.fence.next and case.step(now)]
    if proved:
        with database.write() as tx:
            for job in proved:
                case = cases.pop(job)
                settle(tx, context.clock.wall(), job, case.held.attempt, case.worker.id, case.outcome)
        ring(database.place)
    return bool(proved)


def _late(job: int, cases: dict[int, Case]) -> Fail:
    why = cases[job].fence.stuck if job in cases else None
    said = f"job {job} is still being stopped" + (f": {why}" if why else "")
    return Fail("TIMED_OUT", said, "it stays marked, and a worker goes on with it; spoolctl workers shows them")
