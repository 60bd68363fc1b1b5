"""The worker: one process, one thread, one loop.

It wakes for a reason (a child ended, the bell, a signal, a deadline), steps what runs, and then
does one transaction that records what ended *and* claims what fits: one sync a turn. It never
leaves because of the queue's troubles: what cannot be recorded now is kept and recorded later.
Called by `verbs/work.py`.
"""

from __future__ import annotations

from spoolctl import limits
from spoolctl.errors import Fail
from spoolctl.run import faults
from spoolctl.run.attempt import Attempt
from spoolctl.run.bell import ring
from spoolctl.run.doorbell import Ringer
from spoolctl.run.launch import Launch
from spoolctl.run.membership import Membership
from spoolctl.run.plan import Tally
from spoolctl.run.reaper import Reaper
from spoolctl.run.results import Results
from spoolctl.run.trouble import FATAL, RETRY_AFTER, Trouble
from spoolctl.run.wakeup import Wakeup
from spoolctl.store import claim, drain, recover, workers
from spoolctl.store.settle import Outcome, settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.context import Context
    from spoolctl.run.plan import Plan
    from spoolctl.store.claim import Claimed
    from spoolctl.store.database import Database

TICK = 1.0  # seconds between looks at the queue, the file and the peers when nothing wakes us
LOCK_WAIT = 0.1  # how long a turn waits inside SQLite; children and signals wait with it
SHORT = 0.003  # seconds; a command that takes less is about as quick as its record
LINGER = 0.001
CLOCK_JUMP = 1.0  # seconds by which the wall clock may drift from one tick to the next


class Loop:
    """One worker's life: `run` it once."""

    def __init__(self, database: Database, plan: Plan, context: Context) -> None:
        self.database, self.plan, self.context = database, plan, context
        self.clock, self.say = context.clock, context.say
        self.point = faults.arm(context.environ)
        self.tally = Tally()
        self.running: dict[int, Attempt] = {}
        self.claims = 0
        self.trouble = Trouble(self.say)
        self.ringer = Ringer(database.place, self.clock)
        self.next_tick = 0.0
        self.clock_offset: float | None = None  # the wall clock less the monotonic one, seconds
        self.due_at: int | None = None
        self.news = True  # somebody may want something of us
        self.more = True  # there may be something to claim
        self.leaves: Fail | None = None  # why it leaves before the plan is fulfilled
        self.finished = False

    def run(self) -> Tally:
        """Work until the plan is fulfilled or a signal ends it. Raises Fail: QUEUE_GONE, WORKER_EXISTS,
        NEWER_QUEUE, or whatever has kept the last results from being recorded."""
        self.launch = Launch(self.context, self.point)
        self.member = Membership(self.database, self.context, self.plan)
        self.me = self.member.me
        self.results = Results(self.me, self.tally, self.say)
        self.reaper = Reaper(self.me, self.clock, self.context.reap_threshold(), self.say, self.point)
        self.wakeup = Wakeup(self.database.place)
        try:
            self._enter()
            while not self.finished:
                self._wake()
                if self._others_end_soon():
                    self.wakeup.sleep(LINGER)
                    self._wake()
                self._turn()
                self.ringer.ring()
                self._judge_end()
                if not self.finished:
                    self.wakeup.sleep(self._until_next(), busy=self._room() <= 0)
            self.point("leaving")
            self.database.wait_for_lock(limits.BUSY_TIMEOUT)
            self.member.leave(self.database)
            ring(self.database.place)
        finally:
            self.wakeup.close()
            self.member.close()
        if self.leaves:
            raise self.leaves
        return self.tally

    def _enter(self) -> None:
        """Go on the roll, however long somebody else holds the write lock."""
        self.database.wait_for_lock(LOCK_WAIT)
        while not self.wakeup.stops:
            try:
                self.member.enter(self.database)
                break
            except Fail as fail:
                if fail.code != "LOCKED":
                    raise
                self._note_trouble(fail)
                self.wakeup.sleep(RETRY_AFTER)
        self.point("entered")
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
                assert attempt.outcome is not None
                self.results.waiting.append((attempt.job, attempt.outcome))
                self.point("ended")
        if now >= self.next_tick:
            try:
                self.member.check_file()
            except Fail:
                self._abandon_ship()
                raise

    def _others_end_soon(self) -> bool:
        """Whether to wait a moment, so that one transaction records what two short commands came to.
        Only while commands are so short that another transaction would take longer."""
        if not self.results.waiting or not self.running:
            return False
        took = self.results.waiting[-1][1].seconds
        now = self.clock.monotonic()
        return took is not None and took < SHORT and all(now - a.started < SHORT for a in self.running.values())

    def _abandon_ship(self) -> None:
        """Stop everything that runs, without a queue to write it to; not what cannot be stopped."""
        for attempt in self.running.values():
            attempt.stop("released", self.clock.monotonic())
        while any(attempt.stuck is None for attempt in self.running.values()):
            self.wakeup.sleep(0.05)
            now = self.clock.monotonic()
            self.running = {job: a for job, a in self.running.items() if not a.step(now)}

    def _turn(self) -> None:
        """One look at the queue, and where there is something to write, one transaction."""
        now = self.clock.monotonic()
        if now < self.trouble.quiet_until:
            return
        tick = now >= self.next_tick
        try:
            self._be_rid_of_doubt(self.clock.wall())
            beaten = self.member.beat(self.database, now)
            # A worker with nothing to do asks one cheap question a second, and looks at everything
            # with each heartbeat, whatever the answers were.
            if beaten or ((tick or self.wakeup.rung) and self.database.changed_by_others()):
                self.news = self.more = self.reaper.news = True
            self.wakeup.rung = False
            if self.news:
                self._look(now)
                self.news = False
            if tick:
                self.next_tick = now + TICK
                self.launch.forget_programs()
                self._mind_the_clock(now)
                self.reaper.look(self.database)
                self._note_stuck()
            self.reaper.step(self.database)
            self.launch.note(self.database)
            if self._must_write():
                self._write()
                beaten = True
            if beaten:
                self.trouble.over()
        except Fail as fail:
            self._note_trouble(fail)

    def _mind_the_clock(self, now: float) -> None:
        """Backoffs are kept as moments of the wall clock, which may be set: then they are put right.
        Nothing else depends on it: deadlines are monotonic, and life is proved by locks."""
        offset = self.clock.wall() / 1000 - now
        if self.clock_offset is None or abs(offset - self.clock_offset) > CLOCK_JUMP:
            with self.database.write(sync=False) as tx:
                claim.shorten_backoffs(tx, self.clock.wall())
            self.more = True
        self.clock_offset = offset

    def _look(self, now: float) -> None:
        """What others want of us: attempts to stop, or that we make room for a newer program."""
        with self.database.read() as tx:
            wanted = workers.to_stop(tx, self.me.id)
            outgrown = self.database.outgrown(tx)
        if outgrown and not self.leaves:
            self.leaves = outgrown
            self.say(f"{self.leaves.message}: finishing what runs, then leaving")
        for job, number, _ in wanted:
            attempt = self.running.get(job)
            if attempt and attempt.job.attempt == number:
                attempt.stop("canceled", now)

    def _note_stuck(self) -> None:
        """Say in the queue which of our attempts cannot be ended."""
        changed = [attempt for attempt in self.running.values() if attempt.stuck != attempt.told]
        if changed:
            with self.database.write(sync=False) as tx:
                for attempt in changed:
                    recover.note_stuck(tx, attempt.job.job, attempt.job.attempt, attempt.stuck)
                    attempt.told = attempt.stuck

    def _room(self) -> int:
        """How many jobs may be claimed now."""
        if self.tally.stopped or self.leaves or self.clock.monotonic() < self.launch.held_until:
            return 0
        if self.plan.mode == "once":
            return 1 - self.claims
        return self.plan.jobs - len(self.running)

    def _must_write(self) -> bool:
        """Whether there is something to record or to claim. Asked with a read where it is not
        known, so that idle workers never take the write lock."""
        if self.results.waiting or self.reaper.proved:
            return True
        now = self.clock.wall()
        if not self._room() or not (self.more or (self.due_at is not None and self.due_at <= now)):
            return False
        with self.database.read() as tx:
            self.due_at = claim.next_due(tx)
            self.more = claim.anything(tx, now, self.plan.queues, self.plan.slots)
        return self.more

    def _write(self) -> None:
        """The turn's transaction, then the spawns that it has promised."""
        now = self.clock.wall()
        # After a failure first record, then start anew.
        room = self._room() if self.trouble.code in (None, "LOCKED") else 0
        with self.database.write() as tx:
            if self.database.outgrown(tx):
                room, self.news = 0, True
            states = self.results.settle(tx, now)
            if states:
                self.point("settling")
            reaped = self.reaper.settle(tx, now)
            mine = (self.me.id, self.me.name)
            claimed = claim.claim(tx, now, mine, self.plan.queues, room, self.plan.slots) if room > 0 else []
            self.due_at = claim.next_due(tx)
            if claimed:
                self.point("claiming")
        self.more = len(claimed) == room
        self.claims += len(claimed)
        if claimed:
            self.point("claimed")
        self._spawn(claimed)  # before anything that could fail: the queue says that they run
        if states:
            self.point("settled")
        self.results.told(states)
        self.ringer.changed()
        self.reaper.told(reaped, self.database)

    def _spawn(self, claimed: list[Claimed]) -> None:
        for job in claimed:
            started = self.launch.start(self.database, job)
            if isinstance(started, Attempt):
                self.running[job.job] = started
            else:
                self.results.waiting.append((job, started))
                self.claims -= started.kind == "released"

    def _note_trouble(self, fail: Fail) -> None:
        if fail.code not in FATAL:
            self.more = True
            self.trouble.note(fail, self.clock.monotonic())
            if not self.trouble.hopeless(self.database.place.path):
                return
        self._abandon_ship()
        raise fail

    def _be_rid_of_doubt(self, now: int) -> None:
        """After a failed transaction: open anew, and put back what the queue says is ours though
        nothing here runs it."""
        if not self.trouble.unsure:
            return
        self.database = self.member.reopen(self.database)
        self.database.wait_for_lock(LOCK_WAIT)
        known = [attempt.job for attempt in self.running.values()] + [job for job, _ in self.results.waiting]
        here = {(job.job, job.attempt) for job in known}
        with self.database.write() as tx:
            workers.beat(tx, now, self.me.id)  # whatever is found there, this COMMIT syncs it
            found = self.results.found(tx)
            for held in workers.in_hand(tx, self.me.id):
                if (held.job, held.attempt) not in here:
                    lost = Outcome("released", "worker_stopped", "its claim was in doubt; it was not started")
                    settle(tx, now, held.job, held.attempt, self.me.id, lost)
        self.trouble.unsure = False
        self.results.told_found(found)

    def _judge_end(self) -> None:
        """Whether the plan is fulfilled."""
        if self.wakeup.stops > 1 and all(a.stuck for a in self.running.values()) and self._nothing_to_record():
            self.finished = True  # what cannot be ended keeps its line; a peer, or the next worker, goes on with it
            return
        if self.running or self.results.waiting or self.reaper.busy or self.trouble.unsure:
            return
        if self.tally.stopped or self.leaves:
            self.finished = True
            self.tally.settled = self.plan.mode == "once" and self.claims > 0
        elif (self.plan.mode == "once" and self.claims) or (self.plan.mode != "serve" and self._settled()):
            self.finished = self.tally.settled = True

    def _nothing_to_record(self) -> bool:
        """Whether every result is in the queue, or will not get there: told twice to stop, a worker does
        not wait for ever until somebody mends the disk."""
        fail = self.trouble.fail
        waiting = self.results.waiting
        if not waiting or fail is None or self.clock.monotonic() < self.trouble.since + limits.STOP_WAIT:
            return not waiting
        jobs = ", ".join(str(job.job) for job, _ in waiting)
        said = f"{fail.message}; so the ends of jobs {jobs} are not recorded"
        self.leaves = Fail(fail.code, said, "the next worker takes them back and runs them again")
        return True

    def _settled(self) -> bool:
        """Whether nothing is left to wait for in the served queues."""
        if self.clock.monotonic() < max(self.launch.held_until, self.trouble.quiet_until):
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
        times = [self.next_tick, self.member.next_beat, self.reaper.next, self.launch.note_at(), self.ringer.next]
        times += [attempt.next for attempt in self.running.values()]
        if self._room() > 0 and self.due_at is not None:
            times.append(now + (self.due_at - self.clock.wall()) / 1000)
        if self.results.waiting or self.trouble.unsure:
            times.append(now)
        return max(0.0, min(times) - now, self.trouble.quiet_until - now)
