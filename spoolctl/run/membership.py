"""A worker's standing: its lock, its line on the roll, its heartbeat, and the file that it serves.

The lock is taken before the line is written, so nobody can see the line and think its worker
dead; the line is struck out before the lock file goes. Called by `run/loop.py`.
"""

from __future__ import annotations

import os

from spoolctl.errors import Fail
from spoolctl.run import liveness
from spoolctl.store import workers
from spoolctl.store.database import open_queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.context import Context
    from spoolctl.run.plan import Plan
    from spoolctl.store.database import Database
    from spoolctl.store.workers import Worker

COMPANIONS = ("-wal", "-shm")  # SQLite keeps them for as long as a process has the file open


class Membership:
    """One worker, from `enter` to `leave`. me: its line on the roll. Times are monotonic seconds."""

    def __init__(self, database: Database, context: Context, plan: Plan) -> None:
        self.place, self.context = database.place, context
        self.file, self.queue_id = identity(database.place.path), database.queue_id
        self.me: Worker = liveness.identity()
        self.me.lock = os.urandom(8).hex()
        self.me.name = plan.name or f"{self.me.host[:40]}-{self.me.pid}-{self.me.lock[:4]}"
        self.me.jobs, self.me.queues = plan.jobs, plan.queues
        self.lock = liveness.hold(self.place, self.me.lock)
        self.next_beat = 0.0
        self.companions: dict[str, tuple[int, int] | None] = {}

    def enter(self, database: Database) -> None:
        """Go on the roll. Raises Fail("WORKER_EXISTS") where a live worker has the name."""
        now = self.me.started_at = self.me.heartbeat_at = self.context.clock.wall()
        with database.write() as tx:
            twins = workers.named(tx, self.me.name)
            liveness.refuse_twin(self.place, twins, now, self.context.reap_threshold())
            workers.enter(tx, self.me)
        self._remember_companions()

    def beat(self, database: Database, now: float) -> bool:
        """Write the heartbeat where it is due; whether it was."""
        if now < self.next_beat:
            return False
        with database.write(sync=False) as tx:
            workers.beat(tx, self.context.clock.wall(), self.me.id)
        self.next_beat = now + self.context.heartbeat_interval()
        return True

    def check_file(self) -> None:
        """Raise Fail("QUEUE_GONE") where the path names another file than the one that is open."""
        try:
            found = identity(self.place.path)
        except OSError:
            return  # it cannot be told, so nothing is concluded
        if found != self.file:
            self._put_aside()
            raise self._gone()
        for ending in COMPANIONS:
            if self.companions.get(ending) not in (None, _companion(self.place.path + ending)):
                said = f"{self.place.path}{ending} was removed or replaced"
                raise Fail("QUEUE_GONE", said, "its jobs were stopped; start a worker anew, and leave that file alone")

    def reopen(self, database: Database) -> Database:
        """The same queue, opened anew. Raises Fail("QUEUE_GONE") where it is another one, by then."""
        database.close()
        self.companions = {}  # the last one to close removes them
        self.check_file()
        database = open_queue(self.place)
        # Whatever the path led to in between, the queue is asked itself.
        if database.queue_id != self.queue_id:
            raise self._gone()
        self._remember_companions()
        return database

    def _remember_companions(self) -> None:
        """From now on they must be the ones that are there."""
        self.companions = {ending: _companion(self.place.path + ending) for ending in COMPANIONS}

    def _put_aside(self) -> None:
        """SQLite would replay our -wal into whatever file is there now."""
        for ending in COMPANIONS:
            path = self.place.path + ending
            if self.companions.get(ending) and _companion(path) == self.companions[ending]:
                try:
                    os.rename(path, f"{self.place.path}.{self.queue_id}{ending}")
                except OSError:
                    pass  # a peer was faster

    def _gone(self) -> Fail:
        said = f"{self.place.path} was removed or replaced"
        return Fail("QUEUE_GONE", said, "its jobs were stopped; start a worker on the queue that you want served")

    def leave(self, database: Database) -> None:
        """Off the roll. Where the queue does not let us, a peer strikes us out later."""
        try:
            with database.write(sync=False) as tx:
                gone = workers.leave(tx, self.me.id)
        except Fail:
            return
        if gone:
            liveness.forget(self.place, self.me)

    def close(self) -> None:
        """Let go of the lock: from here on this worker counts as dead."""
        if self.me.id < 0:
            liveness.forget(self.place, self.me)  # it never was on the roll
        os.close(self.lock)


def _companion(path: str) -> tuple[int, int] | None:
    try:
        return identity(path)
    except OSError:
        return None


def identity(path: str) -> tuple[int, int] | None:
    """What tells a file from any other at the same path; None where there is none. Raises OSError
    where that cannot be told."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
