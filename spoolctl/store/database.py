"""Opens the queue file, and owns every BEGIN, COMMIT and ROLLBACK.

Nothing acknowledged is lost: a transaction is on disk (synchronous=FULL, fullfsync) when `write`
returns, unless the caller says that it need not be. Every error of SQLite leaves here as a Fail
that names the file and the remedy. The rest of `store/` gets a connection inside a transaction.
"""

from __future__ import annotations

import os

from spoolctl.errors import Fail
from spoolctl.limits import APPLICATION_ID, BUSY_TIMEOUT, SCHEMA_VERSION, WAL_KEPT
from spoolctl.store.driver import sqlite3
from spoolctl.store.place import Place, absent, uri

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


class Database:
    """An open queue. place: its paths. queue_id: the file's own id, hex."""

    def __init__(self, place: Place, connection: sqlite3.Connection) -> None:
        self.place = place
        self.connection = connection
        self.version = -1
        with self.read() as tx:
            self.queue_id: str = tx.execute("SELECT value FROM meta WHERE name = 'queue_id'").fetchone()[0]

    def write(self, sync: bool = True) -> Transaction:
        """A transaction that may change the queue; it holds the write lock from its first moment.

        sync: be on disk before it returns. False for what a power cut may take: heartbeats and
        spawn records.
        """
        return Transaction(self, "BEGIN IMMEDIATE", sync)

    def read(self) -> Transaction:
        """A transaction that sees one moment of the queue and blocks nobody."""
        return Transaction(self, "BEGIN", True)

    def changed_by_others(self) -> bool:
        """Whether another process has committed something since this was asked last.

        https://www.sqlite.org/pragma.html#pragma_data_version; our own ring of the bell wakes us too.
        """
        before = self.version
        try:
            self.version = self.connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise explained(error, self.place) from error
        return self.version != before

    def outgrown(self, tx: sqlite3.Connection) -> Fail | None:
        """The refusal of a schema to which a newer spoolctl has brought the file meanwhile, if one has."""
        found: int = tx.execute("PRAGMA user_version").fetchone()[0]
        return newer(self.place, found) if found > SCHEMA_VERSION else None

    def wait_for_lock(self, seconds: float) -> None:
        """How long a transaction waits for the write lock from now on."""
        self.connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def close(self) -> None:
        """Close the file; never fails."""
        try:
            self.connection.close()
        except sqlite3.Error:
            pass


class Transaction:
    """`with database.write() as tx:` tx is the connection; COMMIT at the end, ROLLBACK on an error."""

    def __init__(self, database: Database, begin: str, sync: bool) -> None:
        self.database, self.begin, self.sync = database, begin, sync

    def __enter__(self) -> sqlite3.Connection:
        connection = self.database.connection
        try:
            if not self.sync:
                connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(self.begin)
        except sqlite3.Error as error:
            self._end()
            raise explained(error, self.database.place) from error
        return connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        certain = True
        try:
            if error is None:
                self.database.connection.execute("COMMIT")
        except sqlite3.Error as failed:
            from spoolctl.store.doubt import bury

            error, certain = failed, bury(self.database.connection)
        self._end()
        if isinstance(error, sqlite3.Error):
            fail = explained(error, self.database.place)
            if not certain:
                fail.hint += "; whether it was recorded is not known: look first"
            raise fail from error

    def _end(self) -> None:
        connection = self.database.connection
        try:
            # On a full disk SQLite has rolled back by itself; a second ROLLBACK would be an error.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass
        try:
            if not self.sync:
                connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:
            pass


def explained(error: sqlite3.Error, place: Place) -> Fail:
    """What an error of SQLite means to the caller; the words for it are loaded only now."""
    from spoolctl.store.explain import explain

    return explain(error, place)


def open_queue(
    place: Place, *, create_missing: bool = False, read_only: bool = False, trust: bool = False
) -> Database:
    """The queue at `place`.

    create_missing: make it where there is none; trust: even on a network's file system. read_only:
    change nothing; where there is no queue, answer from an empty one in memory.
    Raises Fail: NOT_FOUND, NOT_A_QUEUE, NEWER_QUEUE, NO_ACCESS, READ_ONLY, LOCKED …
    """
    if absent(place.path):
        # Loaded only here, as is the schema: most calls find a queue.
        from spoolctl.store import creation

        if read_only:
            return Database(place, creation.fresh(":memory:"))
        if not create_missing:
            raise Fail("NOT_FOUND", f"there is no queue at {place.path}", "the first 'add' makes it")
        creation.create(place, trust)
    elif not os.path.isfile(place.path):
        raise Fail("NOT_A_QUEUE", f"{place.path} is not a regular file", "name a queue file with --db")
    connection = None
    try:
        connection = _connect_to_read(place.path) if read_only else _connect(place.path, "rw")
        _recognise(connection, place, read_only)
        if create_missing and not all(map(os.path.isdir, (place.outputs, place.workers, place.stop_bell))):
            from spoolctl.store import creation

            creation.make_folders(place)  # the file was copied or restored without them
        connection.execute("PRAGMA query_only = 1" if read_only else "PRAGMA synchronous = FULL")
        if not read_only:
            connection.execute("PRAGMA fullfsync = 1")  # macOS: fsync alone leaves it in the drive's cache
            # What a long reader has let it grow to is given back when it starts anew.
            connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT}")
        return Database(place, connection)
    except (sqlite3.Error, Fail) as error:
        if connection:
            connection.close()  # else -wal and -shm stay beside somebody else's file
        if isinstance(error, Fail):
            raise
        raise explained(error, place) from error


def _connect(path: str, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(uri(path, mode), uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)


def _connect_to_read(path: str) -> sqlite3.Connection:
    """Where it may write, as a writer: the last one to close then removes -wal and -shm. Where it
    may not, without. And where there is no -shm and none can be made, so that nobody else is there:
    without locks, what a killed writer has left in the WAL included."""
    for mode in ("rw", "ro", "alone"):
        connection = _connect_alone(path) if mode == "alone" else _connect(path, mode)
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if explained(error, Place(path)).code not in ("READ_ONLY", "NO_ACCESS", "NO_SPACE"):
                raise
            refused = error
    raise refused


def _connect_alone(path: str) -> sqlite3.Connection:
    """Without a WAL it is an unchanging file. With one, its index is kept in this process's memory,
    which SQLite does for whoever has locked everybody out: https://www.sqlite.org/wal.html#noshm"""
    if not os.path.exists(path + "-wal") or not os.path.getsize(path + "-wal"):
        return _connect(path, "ro&immutable=1")
    connection = _connect(path, "ro&vfs=unix-none")
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


def _recognise(connection: sqlite3.Connection, place: Place, read_only: bool) -> None:
    """Refuse a file that is not ours or is too new; bring an older one up to date."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        from spoolctl.store.explain import foreign

        raise foreign(connection, place)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > SCHEMA_VERSION:
        raise newer(place, found)
    if found < SCHEMA_VERSION and not read_only:
        from spoolctl.store.migrations import migrate

        migrate(connection, SCHEMA_VERSION)


def newer(place: Place, found: int) -> Fail:
    """The file has a schema that this program does not know."""
    said = f"{place.path} has schema version {found}; this spoolctl knows up to {SCHEMA_VERSION}"
    return Fail("NEWER_QUEUE", said, "use the newer spoolctl that made it, or has brought it up to date")
