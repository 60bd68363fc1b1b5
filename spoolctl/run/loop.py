"""The worker: one process, one thread, one loop.

It wakes for a reason (a child ended, the bell, a signal, a deadline), steps what runs, and then
does one transaction that records what ended *and* claims what fits: one sync a turn. It never
leaves because of the queue's troubles: what cannot be recorded now is kept and recorded later.
Called by `verbs/work.py`.
"""

from __future__ import annotations

import os

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.run import liveness, process
from spoolctl.run.attempt import Attempt
from spoolctl.run.bell import ring
from spoolctl.run.reaper import Reaper
from spoolctl.run.wakeup import Wakeup
from spoolctl.store import claim, drain, workers
from spoolctl.store.database import open_queue
from spoolctl.store.settle import Outcome, settle
from spoolctl.text import command_line, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

    from spoolctl.context import Context
    from spoolctl.store.claim import Claimed
    from spoolctl.store.database import Database

TICK = 1.0  # seconds between looks at the queue, the file and the peers when nothing wakes us
LOCK_WAIT = 0.1  # how long a turn waits inside SQLite; children and signals wait with it
RETRY_AFTER = 0.2  # pause after a turn that the queue refused
HOLD_BACK_MAX = 30.0  # longest pause after the machine refused to start a command


class Plan:
    """What a worker is asked to do. queues: empty is every queue. slots: None is no limit of its
    own. mode: "serve" until told to stop, "drain" until the queues have settled, "once" for one job."""

    def __init__(self, name: str, queues: tuple[str, ...], jobs: int, slots: int | None, mode: str) -> None:
        self.name, self.queues, self.jobs, self.slots, self.mode = name, queues, jobs, slots, mode


class Tally:
    """What a worker has done. settled: nothing was left to do when it went. ended: attempts by
    the state in which they left their job."""

    def __init__(self) -> None:
        self.executed = 0
        self.ended = {"done": 0, "failed": 0, "dead": 0, "canceled": 0, "queued": 0}
        self.settled = False
        self.stopped = False


class Loop:
    """One worker's life: `run` it once."""

    def __init__(self, database: Database, plan: Plan, context: Context) -> None:
        self.database, self.plan, self.context = database, plan, context
        self.clock, self.say = context.clock, context.say
        self.tally = Tally()
        self.running: dict[int, Attempt] = {}
        self.ended: list[Attempt] = []  # over, and not yet recorded
        self.refused: list[tuple[Claimed, Outcome]] = []  # claimed, not started, not yet recorded
        self.claims = 0
        self.trouble: str | None = None  # the code of what the queue refuses us at present
        self.unsure = False  # a transaction failed: what we hold may not be what the queue has
        self.quiet_until = 0.0  # no transaction before
        self.hold_back = 0.0  # the last pause after the machine's fault
        self.held_until = 0.0  # no claim before
        self.next_tick = self.next_beat = 0.0
        self.due_at: int | None = None
        self.finished = False

    def run(self) -> Tally:
        """Work until the plan is fulfilled or a signal ends it. Raises Fail("QUEUE_GONE")."""
        process.close_inherited()
        self.base = {os.fsencode(k): os.fsencode(v) for k, v in self.context.environ.items()}
        self.home = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        self.file = _identity(self.database.place.path)
        self._enter()
        self.wakeup = Wakeup(self.database.place)
        self.reaper = Reaper(self.me, self.clock, self.context.reap_threshold(), self.say)
        try:
            self.database.wait_for_lock(LOCK_WAIT)
            while not self.finished:
                self._wake()
                self._turn()
                self._judge_end()
                if not self.finished:
                    self.wakeup.sleep(self._until_next())
            self._leave()
        finally:
            self.wakeup.close()
            os.close(self.lock)
        return self.tally

    def _enter(self) -> None:
        """Take the lock that proves our life, then go on the roll: in that order nobody can see
        us there and think us dead."""
        self.me = liveness.identity()
        self.me.lock = os.urandom(8).hex()
        self.me.name = self.plan.name or f"{self.me.host[:40]}-{self.me.pid}-{self.me.lock[:4]}"
        self.me.jobs, self.me.queues = self.plan.jobs, self.plan.queues
        self.lock = liveness.hold(self.database.place, self.me.lock)
        now = self.me.started_at = self.me.heartbeat_at = self.clock.wall()
        try:
            with self.database.write() as tx:
                twins = workers.named(tx, self.me.name)
                liveness.refuse_twin(self.database.place, twins, now, self.context.reap_threshold())
                workers.enter(tx, self.me)
        except Fail:
            liveness.forget(self.database.place, self.me)
            os.close(self.lock)
            raise
        self.say(f"worker {self.me.name} serves {', '.join(self.me.queues) or 'every queue'}, {self.plan.jobs} at once")

    def _wake(self) -> None:
        """Everything that does not need the queue: signals, children, deadlines, the file itself."""
        now = self.clock.monotonic()
        if self.wakeup.stops and not self.tally.stopped:
            self.tally.stopped = True
            self.say(f"stopping: {len(self.running)} running; a second signal puts them back at once")
        if self.wakeup.stops > 1:
            for attempt in self.running.values():
                attempt.stop("released", now)
        for attempt in list(self.running.values()):
            if attempt.step(now):
                del self.running[attempt.job.job]
                self.ended.append(attempt)
        self._check_file()

    def _check_file(self) -> None:
        """Leave without touching what has taken our queue's place."""
        now = self.clock.monotonic()
        if now < self.next_tick or _identity(self.database.place.path) == self.file:
            return
        self._abandon_ship()
        raise Fail(
            "QUEUE_GONE",
            f"{self.database.place.path} was removed or replaced",
            "its jobs were stopped; start a worker on the queue that you want served",
        )

    def _abandon_ship(self) -> None:
        """Stop everything that runs, without a queue to write it to."""
        for attempt in self.running.values():
            attempt.stop("released", self.clock.monotonic())
        while self.running:
            self.wakeup.sleep(0.05)
            now = self.clock.monotonic()
            self.running = {job: a for job, a in self.running.items() if not a.step(now)}

    def _turn(self) -> None:
        """One look at the queue, and where there is something to write, one transaction."""
        now = self.clock.monotonic()
        if now < self.quiet_until:
            return
        tick = now >= self.next_tick
        try:
            if now >= self.next_beat:
                self._beat(now)
            if tick or self.wakeup.rung or self.unsure:
                self._look(now)
            if tick:
                self.next_tick = now + TICK
                self.reaper.look(self.database)
            self.reaper.step(self.database)
            if self._must_write(tick):
                self._write()
            if self.trouble:
                self.say("the queue can be written again")
                self.trouble = None
        except Fail as fail:
            self._note_trouble(fail)

    def _beat(self, now: float) -> None:
        with self.database.write(sync=False) as tx:
            workers.beat(tx, self.clock.wall(), self.me.id)
        self.next_beat = now + self.context.heartbeat_interval()

    def _look(self, now: float) -> None:
        """What others want of us: attempts to stop."""
        with self.database.read() as tx:
            wanted = workers.to_stop(tx, self.me.id)
        for job, number, _ in wanted:
            attempt = self.running.get(job)
            if attempt and attempt.job.attempt == number:
                attempt.stop("canceled", now)

    def _room(self) -> int:
        """How many jobs may be claimed now."""
        if self.tally.stopped or self.clock.monotonic() < self.held_until:
            return 0
        if self.plan.mode == "once":
            return 1 - self.claims
        return self.plan.jobs - len(self.running)

    def _must_write(self, tick: bool) -> bool:
        """Whether there is something to record or to claim. Asked with a read where it is not
        known, so that idle workers never take the write lock."""
        if self.ended or self.refused or self.unsure or self.reaper.proved:
            return True
        if not self._room():
            return False
        with self.database.read() as tx:
            self.due_at = claim.next_due(tx)
            return claim.anything(tx, self.clock.wall(), self.plan.queues, self.plan.slots)

    def _write(self) -> None:
        """The turn's transaction, then the spawns that it has promised."""
        now = self.clock.wall()
        self._be_rid_of_doubt(now)
        states: list[tuple[Attempt | None, str | None]] = []
        with self.database.write() as tx:
            for attempt in self.ended:
                assert attempt.outcome is not None
                states.append((attempt, self._settle(tx, now, attempt.job, attempt.outcome)))
            for job, outcome in self.refused:
                states.append((None, self._settle(tx, now, job, outcome)))
            reaped = self.reaper.settle(tx, now)
            room = self._room()
            mine = (self.me.id, self.me.name)
            claimed = claim.claim(tx, now, mine, self.plan.queues, room, self.plan.slots) if room > 0 else []
            self.due_at = claim.next_due(tx)
        self._tell(states)
        self.ended, self.refused = [], []
        self.reaper.told(reaped, self.database)
        self.claims += len(claimed)
        self._spawn(claimed)
        ring(self.database.place)

    def _settle(self, tx: Connection, now: int, job: Claimed, outcome: Outcome) -> str | None:
        return settle(tx, now, job.job, job.attempt, self.me.id, outcome)

    def _tell(self, states: list[tuple[Attempt | None, str | None]]) -> None:
        for (attempt, state), (job, outcome) in zip(
            states, [(a.job, a.outcome) for a in self.ended] + [(j, o) for j, o in self.refused]
        ):
            assert outcome is not None
            self.tally.executed += attempt is not None or outcome.kind == "failed"
            if state is None:
                self.say(f"job {job.job}: its result came too late and is discarded: another worker has it")
            else:
                self.tally.ended[state] += 1
                self.say(f"job {job.job} attempt {job.attempt} {_ending(outcome)}; the job is {state}")

    def _spawn(self, claimed: list[Claimed]) -> None:
        """Start what was claimed, and note the processes where a successor will look for them."""
        started = []
        for job in claimed:
            output = self.database.place.output(self.database.queue_id, job.job, job.attempt)
            try:
                pid = process.spawn(job, self.base, self.home, output)
            except process.NotStarted as failed:
                self._not_started(job, failed.outcome)
                continue
            attempt = Attempt(job, pid, liveness.start_time(pid), output, self.clock.monotonic())
            self.running[job.job] = attempt
            started.append(attempt)
            self.say(f"job {job.job} attempt {job.attempt} started: {command_line(job.argv, 80)}")
        if started:
            self.hold_back = 0.0
            # A power cut takes the processes along with this note: it needs no sync.
            with self.database.write(sync=False) as tx:
                for attempt in started:
                    claim.record_spawn(tx, attempt.job.job, attempt.job.attempt, attempt.pid, attempt.pid_start)

    def _not_started(self, job: Claimed, outcome: Outcome) -> None:
        self.refused.append((job, outcome))
        if outcome.kind == "released":
            self.claims -= 1
            self.hold_back = min(HOLD_BACK_MAX, self.hold_back * 2 or 1.0)
            self.held_until = self.clock.monotonic() + self.hold_back
            self.say(f"the machine refuses to start commands ({outcome.error}); waiting {self.hold_back:.0f}s")

    def _note_trouble(self, fail: Fail) -> None:
        """The queue refused: say so once, keep what is to be recorded, come back soon."""
        self.quiet_until = self.clock.monotonic() + RETRY_AFTER
        self.unsure = True
        if fail.code != self.trouble:
            self.trouble = fail.code
            self.say(f"{fail.message}; waiting: nothing is lost, and nothing new is started until it is over")

    def _be_rid_of_doubt(self, now: int) -> None:
        """After a failed transaction: open anew, and put back what the queue says is ours though
        nothing here runs it. The outcome of a COMMIT that failed is unknown; only reading tells."""
        if not self.unsure:
            return
        self.database.close()
        self.database = open_queue(self.database.place)
        self.database.wait_for_lock(LOCK_WAIT)
        here = {(a.job.job, a.job.attempt) for a in [*self.running.values(), *self.ended]}
        here |= {(job.job, job.attempt) for job, _ in self.refused}
        with self.database.write() as tx:
            for held in workers.in_hand(tx, self.me.id):
                if (held.job, held.attempt) not in here:
                    lost = Outcome("released", "worker_stopped", "its claim was in doubt; it was not started")
                    settle(tx, now, held.job, held.attempt, self.me.id, lost)
        self.unsure = False

    def _judge_end(self) -> None:
        """Whether the plan is fulfilled."""
        if self.running or self.ended or self.refused or self.reaper.busy or self.unsure:
            return
        if self.tally.stopped:
            self.finished = True
            self.tally.settled = self.plan.mode == "once" and self.claims > 0
        elif self.plan.mode == "once" and (self.claims or self._settled()):
            self.finished = self.tally.settled = True
        elif self.plan.mode == "drain" and self._settled():
            self.finished = self.tally.settled = True

    def _settled(self) -> bool:
        """Whether nothing is left to wait for in the served queues."""
        if self.clock.monotonic() < self.held_until:
            return False
        try:
            with self.database.read() as tx:
                if self.plan.mode == "once":
                    return not claim.anything(tx, self.clock.wall(), self.plan.queues, self.plan.slots)
                return drain.settled(tx, self.clock.wall(), self.plan.queues)
        except Fail as fail:
            self._note_trouble(fail)
            return False

    def _until_next(self) -> float:
        """Seconds until something is due without being told."""
        now = self.clock.monotonic()
        times = [self.next_tick, self.next_beat, self.reaper.next]
        times += [attempt.next for attempt in self.running.values()]
        if self._room() > 0 and self.due_at is not None:
            times.append(now + (self.due_at - self.clock.wall()) / 1000)
        if self.ended or self.refused or self.unsure:
            times.append(now)
        return max(0.0, min(times) - now, self.quiet_until - now)

    def _leave(self) -> None:
        """Off the roll. Where the queue does not let us, a peer strikes us out later."""
        self.database.wait_for_lock(limits.BUSY_TIMEOUT)
        try:
            with self.database.write(sync=False) as tx:
                gone = workers.leave(tx, self.me.id)
        except Fail:
            return
        if gone:
            liveness.forget(self.database.place, self.me)


def _identity(path: str) -> tuple[int, int] | None:
    """What tells a file from any other at the same path; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _ending(outcome: Outcome) -> str:
    """How an attempt ended, for the log."""
    how = outcome.signal or (f"exit {outcome.exit_code}" if outcome.exit_code is not None else outcome.error or "")
    took = f" after {duration(outcome.seconds)}" if outcome.seconds is not None else ""
    return f"{outcome.kind.replace('_', ' ')}{f' ({how})' if how else ''}{took}"


