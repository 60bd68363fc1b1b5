"""Recovery: finds dead workers, fences what they left running, and hands their jobs back.

Every worker does it on every tick, also one whose slots are all busy. Two peers may fence the
same attempt: both only end what must end, and the settle gate lets one of them requeue it.
"""

from __future__ import annotations

from spoolctl.run import liveness
from spoolctl.run.attempt import keep_output
from spoolctl.run.fence import Fence, group_in_reach
from spoolctl.run.proc import scan
from spoolctl.store import recover, workers
from spoolctl.store.settle import Outcome, settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from sqlite3 import Connection

    from spoolctl.context import Clock
    from spoolctl.run.fence import Processes
    from spoolctl.store.database import Database
    from spoolctl.store.workers import Held, Worker

FOREVER = float("inf")


class Case:
    """An attempt whose worker cannot end it, and the fence around it. now: monotonic seconds."""

    def __init__(self, database: Database, worker: Worker, held: Held, now: float) -> None:
        self.worker, self.held = worker, held
        self.output = database.place.output(database.queue_id, held.job, held.attempt)
        self.fence = Fence(held.marker, group_in_reach(worker, held.pid), held.pid_start, self.output + ".stdout", now)
        self.outcome = Outcome("abandoned", "worker_crash")
        self.why = "the worker died"
        self.told: str | None = None

    def step(self, now: float, processes: Processes | None = None) -> bool:
        """Go on with the fence; True when nothing is left of the attempt, and what it wrote is on disk."""
        if not self.fence.step(now, processes):
            return False
        keep_output(self.output, self.outcome)
        self.outcome.error = self.outcome.error or self.why
        return True


class Reaper:
    """The dead and what is being done about them. proved: cases whose processes are all gone. news:
    the caller sets it when the roll may have changed.

    threshold: seconds until a heartbeat is stale.
    """

    def __init__(
        self, me: Worker, clock: Clock, threshold: float, say: Callable[[str], None], point: Callable[[str], None]
    ) -> None:
        self.me, self.clock, self.threshold, self.say, self.point = me, clock, threshold, say, point
        self.cases: dict[tuple[int, int], Case] = {}
        self.proved: list[Case] = []
        self.others: list[Worker] = []
        self.news = True  # the roll may have changed since the last look

    @property
    def busy(self) -> bool:
        """Something is being ended, or waits to be recorded; a case that is stuck is neither."""
        return bool(self.proved) or any(case.fence.stuck is None for case in self.cases.values())

    @property
    def next(self) -> float:
        """When `step` has something to do; monotonic seconds."""
        return min((case.fence.next for case in self.cases.values()), default=FOREVER)

    def look(self, database: Database) -> None:
        """Judge every other worker; open a case for each attempt of a dead one. No batch limit:
        one that cannot be reaped hides no other."""
        if self.news:
            self.news = False
            with database.read() as tx:
                self.others = [worker for worker in workers.roll(tx) if worker.id != self.me.id]
        dead = [worker for worker in self.others if self._dead(database, worker)]
        if not dead:
            return
        with database.read() as tx:
            held = [(worker, workers.in_hand(tx, worker.id)) for worker in dead]
        for worker, attempts in held:
            for one in attempts:
                self._open(database, worker, one)
            if not attempts:
                self._strike_out(database, worker)

    def _dead(self, database: Database, worker: Worker) -> bool:
        return liveness.judge(database.place, worker, self.clock.wall(), self.threshold) == liveness.DEAD

    def _open(self, database: Database, worker: Worker, held: Held) -> None:
        key = (held.job, held.attempt)
        if key in self.cases or any(key == (case.held.job, case.held.attempt) for case in self.proved):
            return
        self.cases[key] = Case(database, worker, held, self.clock.monotonic())
        self.say(f"worker {worker.name} (process {worker.pid}) is dead; taking job {held.job} back")

    def _strike_out(self, database: Database, worker: Worker) -> None:
        with database.write(sync=False) as tx:
            gone = recover.strike_out(tx, worker.id)
        if gone:
            liveness.forget(database.place, worker)

    def step(self, database: Database) -> None:
        """Go on with every fence that is due."""
        now = self.clock.monotonic()
        due = {key: case for key, case in self.cases.items() if now >= case.fence.next}
        if not due:
            return
        try:
            processes = scan()  # once for all of them
        except OSError:
            processes = None  # each fence finds out for itself, and says so
        for key, case in due.items():
            if case.step(now, processes):
                del self.cases[key]
                self.proved.append(case)
                self.point("fenced")
            elif case.fence.stuck != case.told:
                self._tell_stuck(database, case)

    def _tell_stuck(self, database: Database, case: Case) -> None:
        with database.write(sync=False) as tx:
            recover.note_stuck(tx, case.held.job, case.held.attempt, case.fence.stuck)
        case.told = case.fence.stuck
        if case.told:
            self.say(f"job {case.held.job} stays where it is: {case.told}")

    def settle(self, tx: Connection, now: int) -> list[tuple[Case, str | None]]:
        """Inside the worker's transaction: hand back what is proved; each with its job's new state."""
        return [
            (case, settle(tx, now, case.held.job, case.held.attempt, case.worker.id, case.outcome))
            for case in self.proved
        ]

    def told(self, reaped: list[tuple[Case, str | None]], database: Database) -> None:
        """After the COMMIT: say it, and strike out the dead who have nothing left."""
        self.proved = []
        for case, state in reaped:
            if state:
                self.say(f"job {case.held.job}: its worker died; the job is {state}")
        for worker in {case.worker.id: case.worker for case, _ in reaped}.values():
            self._strike_out(database, worker)
