"""Opens the queue file, and owns every BEGIN, COMMIT and ROLLBACK.

Nothing acknowledged is lost: a transaction is on disk (synchronous=FULL, fullfsync) when `write`
returns, unless the caller says that it need not be. Every error of SQLite leaves here as a Fail
that names the file and the remedy. The rest of `store/` gets a connection inside a transaction.
"""

from __future__ import annotations

import os
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS

from spoolctl.errors import Fail
from spoolctl.limits import BUSY_TIMEOUT
from spoolctl.store.driver import sqlite3
from spoolctl.store.place import Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

VERSION = 1
APPLICATION_ID = 0x73706F6C  # "spol"; https://www.sqlite.org/pragma.html#pragma_application_id

# What SQLite's messages mean: (part of the message, code, remedy). Python before 3.11 gives no codes.
MEANINGS = (
    ("is locked", "LOCKED", "try again"),
    ("disk is full", "NO_SPACE", "make room on that disk, then try again"),
    ("readonly", "READ_ONLY", "make the file and its folder writable for this user"),
    ("unable to open", "NO_ACCESS", "check that the file and its folder exist and are yours"),
    ("not a database", "NOT_A_QUEUE", "name another file with --db"),
    # SQLite reports a failed read as damage: https://www.sqlite.org/rescode.html#corrupt
    ("malformed", "DAMAGED", "check the disk; then copy what is readable with: sqlite3 FILE .recover"),
)


class Database:
    """An open queue. place: its paths. queue_id: the file's own id, hex."""

    def __init__(self, place: Place, connection: sqlite3.Connection) -> None:
        self.place = place
        self.connection = connection
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
            raise explain(error, self.database.place) from error
        return connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self.database.connection.execute("COMMIT")
        except sqlite3.Error as failed:
            error = failed
        self._end()
        if isinstance(error, sqlite3.Error):
            raise explain(error, self.database.place) from error

    def _end(self) -> None:
        connection = self.database.connection
        try:
            # On a full disk SQLite has rolled back by itself; a second ROLLBACK would be an error.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not self.sync:
                connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:
            pass


def open_queue(place: Place, *, create_missing: bool = False, read_only: bool = False) -> Database:
    """The queue at `place`.

    create_missing: make it where there is none. read_only: change nothing; where there is no
    queue, answer from an empty one in memory.
    Raises Fail: NOT_FOUND, NOT_A_QUEUE, NEWER_QUEUE, NO_ACCESS, READ_ONLY, LOCKED …
    """
    if absent(place.path):
        # Loaded only here, as is the schema: most calls find a queue.
        from spoolctl.store import creation

        if read_only:
            return Database(place, creation.fresh(":memory:"))
        if not create_missing:
            raise Fail("NOT_FOUND", f"there is no queue at {place.path}", "the first 'add' makes it")
        creation.create(place)
    elif not os.path.isfile(place.path):
        raise Fail("NOT_A_QUEUE", f"{place.path} is not a regular file", "name a queue file with --db")
    connection = None
    try:
        connection = _connect_to_read(place.path) if read_only else _connect(place.path, "rw")
        _recognise(connection, place, read_only)
        connection.execute("PRAGMA query_only = 1" if read_only else "PRAGMA synchronous = FULL")
        if not read_only:
            connection.execute("PRAGMA fullfsync = 1")  # macOS: fsync alone leaves it in the drive's cache
        return Database(place, connection)
    except (sqlite3.Error, Fail) as error:
        if connection:
            connection.close()  # else -wal and -shm stay beside somebody else's file
        if isinstance(error, Fail):
            raise
        raise explain(error, place) from error


def absent(path: str) -> bool:
    """Whether there is no file, or an empty one, as `mktemp` leaves it."""
    try:
        return not os.path.lexists(path) or (os.path.isfile(path) and os.stat(path).st_size == 0)
    except OSError as error:
        raise Fail("NO_ACCESS", f"{path}: {error.strerror}") from error


def _connect(path: str, mode: str) -> sqlite3.Connection:
    # A URI, because only a URI can say "never create". https://www.sqlite.org/uri.html
    return sqlite3.connect(f"file:{_quoted(path)}?mode={mode}", uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)


def _connect_to_read(path: str) -> sqlite3.Connection:
    """Where it may write, as a writer: the last one to close then removes -wal and -shm. Where it
    may not, without; and where even -shm cannot be made, as an unchanging file, provided that
    nothing is left in a WAL."""
    for mode in ("rw", "ro", "ro&immutable=1"):
        if mode.endswith("1") and os.path.exists(path + "-wal") and os.path.getsize(path + "-wal"):
            break
        connection = _connect(path, mode)
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if explain(error, Place(path)).code not in ("READ_ONLY", "NO_ACCESS"):
                raise
            refused = error
    raise refused


def _recognise(connection: sqlite3.Connection, place: Place, read_only: bool) -> None:
    """Refuse a file that is not ours or is too new; bring an older one up to date."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise Fail("NOT_A_QUEUE", f"{place.path} is not a queue of spoolctl", "name another file with --db")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found > VERSION:
        raise Fail(
            "NEWER_QUEUE",
            f"{place.path} has schema version {found}; this spoolctl knows up to {VERSION}",
            "use the newer spoolctl that made it",
        )
    if found < VERSION and not read_only:
        from spoolctl.store.migrations import migrate

        migrate(connection, VERSION)


def explain(error: sqlite3.Error, place: Place) -> Fail:
    """What an error of SQLite means to the caller."""
    said = str(error)
    for part, code, remedy in MEANINGS:
        if part in said:
            who = _lock_holder(place.path) if code == "LOCKED" else ""
            return Fail(code, f"{place.path}: {said}{who}", remedy)
    if isinstance(error, sqlite3.OperationalError):
        return Fail("IO_ERROR", f"{place.path}: {said}", "check the disk, then try again")
    return Fail("INTERNAL", f"{place.path}: {type(error).__name__}: {said}", "please report this")


def _lock_holder(path: str) -> str:
    """Who holds the write lock, as far as Linux tells: the owner of byte 120 of the -shm file.

    https://www.sqlite.org/walformat.html#wal_locks. Read from /proc/locks and not asked with
    F_GETLK: that needs the file open, and closing it would drop this process's own locks.
    """
    try:
        shm = os.stat(path + "-shm")
        device = f"{os.major(shm.st_dev):02x}:{os.minor(shm.st_dev):02x}:{shm.st_ino}"
        with open("/proc/locks") as locks:
            for line in locks:
                fields = line.split()
                if "WRITE" in fields and device in fields and fields[-2:] == ["120", "120"]:
                    return f" by process {fields[4]}" if int(fields[4]) > 0 else ""
    except (OSError, ValueError, IndexError):
        pass
    return ""


def from_system(error: OSError, path: str) -> Fail:
    """What an error of the system means to the caller."""
    where = os.fsdecode(error.filename) if error.filename else path
    codes = {ENOSPC: "NO_SPACE", EDQUOT: "NO_SPACE", EACCES: "NO_ACCESS", EPERM: "NO_ACCESS", EROFS: "READ_ONLY"}
    return Fail(codes.get(error.errno or 0, "IO_ERROR"), f"{where}: {error.strerror or error}")


def _quoted(path: str) -> str:
    """`path` inside a URI: `?`, `#`, `%`, spaces and odd bytes are percent-encoded."""
    if path.replace("/", "").replace(".", "").replace("_", "").replace("-", "").isalnum() and path.isascii():
        return path
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in os.fsencode(path))
