"""A consistent copy of a queue, made while workers run. Called by `verbs/backup.py`.

The copy belongs to no worker: what runs while it is made is put back in it, through the gate that ends
every attempt. So it can be used as it is, and nothing in it waits for a process that it does not know.
It appears complete or not at all.
"""

from __future__ import annotations

import os
from stat import S_ISREG

from spoolctl.errors import Fail
from spoolctl.limits import BUSY_TIMEOUT
from spoolctl.store import workers
from spoolctl.store.database import Database
from spoolctl.store.driver import sqlite3
from spoolctl.store.explain import explain, from_system
from spoolctl.store.folder import make_folder, sync_folder
from spoolctl.store.place import Place
from spoolctl.store.settle import Outcome, settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 20
PUT_BACK = "it ran when this copy was made"


def copy_queue(database: Database, path: str, now: int) -> int:
    """Make a copy of the queue at `path`, on disk when this returns; how many jobs ran.

    Raises Fail: CONFLICT where there is something already, NO_SPACE, NO_ACCESS, IO_ERROR.
    """
    if os.path.lexists(path):
        raise Fail("CONFLICT", f"{path} is there already", "name a file that is not")
    if not os.path.isdir(os.path.dirname(path)):
        raise Fail("USAGE", f"FILE {path}: its folder does not exist", "make it first")
    private = f"{path}.{os.urandom(4).hex()}.new"
    try:
        try:
            os.close(os.open(private, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            ran = _fill(database, private, now)
            os.rename(private, path)
            sync_folder(os.path.dirname(path))
        except BaseException:
            _remove(private)
            raise
    except sqlite3.Error as error:
        raise explain(error, Place(path)) from error
    except OSError as error:
        raise from_system(error, path) from error
    return ran


def _fill(database: Database, private: str, now: int) -> int:
    copy = sqlite3.connect(private, isolation_level=None, timeout=BUSY_TIMEOUT)
    try:
        copy.execute("PRAGMA synchronous = FULL")
        # All in one step, which sees one moment; in smaller ones each commit of a worker would start it anew.
        database.connection.backup(copy)
        ran = _put_back(Database(Place(private), copy), now)
        copy.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # all of it into the file, and synced
        return ran
    finally:
        copy.close()


def _put_back(copy: Database, now: int) -> int:
    """End in the copy what runs in the original."""
    ran = 0
    with copy.write() as tx:
        for worker in workers.roll(tx):
            for held in workers.in_hand(tx, worker.id):
                settle(tx, now, held.job, held.attempt, worker.id, Outcome("released", "worker_stopped", PUT_BACK))
                ran += 1
            workers.leave(tx, worker.id)
    return ran


def _remove(path: str) -> None:
    for ending in ("", "-wal", "-shm"):
        try:
            os.unlink(path + ending)
        except OSError:
            pass


def copy_output(database: Database, path: str) -> tuple[int, int]:
    """Copy every output file into the folder of the copy at `path`; how many, and their bytes.

    After the queue: what is recorded there has its output on disk by then. Raises Fail as above.
    """
    files = size = 0
    source, target = database.place, Place(path)
    try:
        for folder in (target.folder, target.outputs):
            make_folder(folder)
        for name in _output_files(source):
            size += _copy(os.path.join(source.outputs, name), os.path.join(target.outputs, name))
            files += 1
    except OSError as error:
        raise from_system(error, target.folder) from error
    os.sync()
    return files, size


def _output_files(place: Place) -> Iterator[str]:
    """Paths below `place.outputs`; a link or a pipe is nobody's output."""
    for folder, _, names in os.walk(place.outputs):
        for path in [os.path.join(folder, name) for name in names]:
            if S_ISREG(os.lstat(path).st_mode):
                yield os.path.relpath(path, place.outputs)


def _copy(source: str, target: str) -> int:
    above = os.path.dirname(target)
    if not os.path.isdir(above):
        for folder in (os.path.dirname(above), above):
            make_folder(folder)
    written = 0
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while True:
                piece = os.read(reader, CHUNK)
                if not piece:
                    return written
                view = memoryview(piece)
                while view:
                    view = view[os.write(writer, view) :]
                written += len(piece)
        finally:
            os.close(writer)
    finally:
        os.close(reader)
