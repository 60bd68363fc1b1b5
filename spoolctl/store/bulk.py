"""Many submissions as one: all or nothing, in order, with the memory of one.

They are collected in a temporary table, which takes no lock of the queue, so a slow producer
blocks nobody; then one transaction moves them. Called by `add --batch`.
"""

from __future__ import annotations

from spoolctl.states import QUEUED
from spoolctl.store.submit import COLUMNS, PAYLOAD, Submission, submit
from spoolctl.store.vector import unpack, unpack_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from sqlite3 import Connection

    from spoolctl.store.database import Database

FIELDS = (*PAYLOAD, "delay", "at", "key", "note", "anew")
TABLES = (
    "PRAGMA temp.journal_mode = OFF",  # nothing in it is ever rolled back
    f"CREATE TEMP TABLE incoming (n INTEGER PRIMARY KEY, {', '.join(FIELDS)})",
    "CREATE TEMP TABLE incoming_tags (n, name, value, PRIMARY KEY (n, name)) WITHOUT ROWID",
)
COLLECT = f"INSERT INTO incoming (n, {', '.join(FIELDS)}) VALUES (?{', ?' * len(FIELDS)})"
COLLECT_TAG = "INSERT INTO incoming_tags VALUES (?, ?, ?)"
KEYED = "SELECT 1 FROM incoming WHERE key IS NOT NULL LIMIT 1"
LAST_ID = "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'"
MOVE = f"""
INSERT INTO jobs (id, {', '.join(COLUMNS)})
SELECT :last + n, {', '.join(PAYLOAD)}, '{QUEUED}', COALESCE(at, 0) <= :now AND delay = 0,
  MAX(:now, COALESCE(at, :now + delay)), MAX(:now, COALESCE(at, :now + delay)), :now, key, note FROM incoming ORDER BY n
"""
MOVE_TAGS = "INSERT INTO tags (name, value, job) SELECT name, value, :last + n FROM incoming_tags"
MOVE_EVENTS = "INSERT INTO events (at, job, event) SELECT :now, :last + n, 'added' FROM incoming ORDER BY n"
EACH = f"SELECT n, {', '.join(FIELDS)} FROM incoming ORDER BY n"
TAGS_OF = "SELECT name, value FROM incoming_tags WHERE n = ?"
CHUNK = 1000


class Bulk:
    """A collection of submissions. count: how many there are."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.count = 0
        self._rows: list[tuple[object, ...]] = []
        self._tags: list[tuple[int, str, str]] = []
        with database.read() as tx:
            for table in TABLES:
                tx.execute(table)

    def collect(self, wanted: Submission, anew_if_finished: bool) -> None:
        """Take one more; it is not in the queue yet."""
        self.count += 1
        self._rows.append(
            (self.count, *wanted.payload(), wanted.delay, wanted.at, wanted.key, wanted.note, anew_if_finished)
        )
        if wanted.tags:
            self._tags += [(self.count, name, value) for name, value in wanted.tags.items()]
        if len(self._rows) >= CHUNK:
            self._flush()

    def _flush(self) -> None:
        with self.database.read() as tx:  # of the queue nothing is touched
            tx.executemany(COLLECT, self._rows)
            tx.executemany(COLLECT_TAG, self._tags)
        self._rows, self._tags = [], []

    def submit(self, now: int) -> tuple[list[int], int]:
        """Put everything into the queue; the jobs in order, and how many were there already.

        Raises Fail("KEY_CONFLICT"), and then nothing is added.
        """
        self._flush()
        with self.database.write() as tx:
            if tx.execute(KEYED).fetchone():
                answers = [submit(tx, now, wanted, anew) for wanted, anew in self._each(tx)]
                return [answer.job for answer in answers], sum(answer.deduplicated for answer in answers)
            row = tx.execute(LAST_ID).fetchone()
            last: int = row[0] if row else 0
            for statement in (MOVE, MOVE_TAGS, MOVE_EVENTS):
                tx.execute(statement, {"last": last, "now": now})
        return list(range(last + 1, last + self.count + 1)), 0

    def _each(self, tx: Connection) -> Iterator[tuple[Submission, bool]]:
        """The submissions again, one at a time."""
        for n, argv, cwd, env, *rest in tx.execute(EACH):
            wanted = Submission(unpack(argv))
            wanted.cwd, wanted.env = cwd, unpack_env(env)
            names = (*PAYLOAD[3:], "delay", "at", "key", "note")
            wanted.__dict__.update(zip(names, rest))
            wanted.tags = dict(tx.execute(TAGS_OF, (n,)).fetchall())
            yield wanted, bool(rest[-1])
