"""Makes a queue: its folders and its file. Loaded only where there is none.

The file appears complete or not at all, and only once, however many come first at the same time.
"""

from __future__ import annotations

import fcntl
import os
import time

from spoolctl.errors import Fail
from spoolctl.limits import APPLICATION_ID, BUSY_TIMEOUT, FOLDER, SCHEMA_VERSION
from spoolctl.store.driver import sqlite3
from spoolctl.store.explain import explain, from_system
from spoolctl.store.filesystem import refuse_unfit
from spoolctl.store.folder import make_folder, sync_folder
from spoolctl.store.migrations import migrate
from spoolctl.store.place import absent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.place import Place


def create(place: Place, trust: bool = False) -> None:
    """Make the queue file and its folders. Whoever comes first makes it; it appears complete or
    not at all: it is made under a private name and published by rename.

    trust: do not ask on what file system.
    """
    directory = os.path.dirname(place.path)
    if not trust:
        refuse_unfit(place.path)
    try:
        _make_directory(place, directory)
        make_folders(place)
        lock = os.open(place.folder, os.O_RDONLY)
        try:
            _wait_for(lock, place)
            if absent(place.path):
                _publish(place)
                sync_folder(directory)
        finally:
            os.close(lock)
    except sqlite3.Error as error:
        raise explain(error, place) from error
    except OSError as error:
        raise from_system(error, place.path) from error


def _wait_for(lock: int, place: Place) -> None:
    """Take the lock of our own folder; nobody but another maker has a reason to hold it for long."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Fail("LOCKED", f"{place.folder} is locked by another process", "try again") from None
            time.sleep(0.01)


def _make_directory(place: Place, directory: str) -> None:
    """The spool directory where it has our own name; else it must exist."""
    if os.path.basename(directory) == FOLDER:
        make_folder(directory)
    elif not os.path.isdir(directory):
        raise Fail("USAGE", f"--db {place.path}: the folder {directory} does not exist", "make it first")


def make_folders(place: Place) -> None:
    """The folders that belong to the file, as far as they are missing."""
    try:
        for folder in (place.folder, place.outputs, place.workers, place.bell, place.stop_bell):
            make_folder(folder)
    except OSError as error:
        raise from_system(error, place.folder) from error


def _publish(place: Place) -> None:
    """Under the directory's lock: build the file aside and give it its name."""
    for ending in ("-wal", "-shm"):
        # Of a removed queue. SQLite would replay such a WAL into the new file.
        if os.path.exists(place.path + ending):
            os.unlink(place.path + ending)
    private = place.path + ".new"
    for ending in ("", "-wal", "-shm"):
        if os.path.exists(private + ending):  # left by a maker that was killed, or that the disk refused
            os.unlink(private + ending)
    os.close(os.open(private, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    connection = fresh(private)
    try:
        # Moves the WAL into the file and syncs it. The last close does that too, but hides that it failed.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()
    os.rename(private, place.path)


def fresh(path: str) -> sqlite3.Connection:
    """A connection to a new, complete queue at `path`."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    migrate(connection, SCHEMA_VERSION)
    connection.execute("INSERT INTO meta VALUES ('queue_id', ?)", (os.urandom(8).hex(),))
    return connection
