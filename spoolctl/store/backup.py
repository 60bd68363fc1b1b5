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


class Copied:
    """What has been copied. put_back: jobs that ran. files, size: of the output, None where it stayed."""

    def __init__(self, put_back: int) -> None:
        self.put_back = put_back
        self.files: int | None = None
        self.size: int | None = None


def make_copy(database: Database, path: str, now: int, with_output: bool) -> Copied:
    """A copy of the queue at `path`, and of its output in `path`.d; all of it is on disk under a private
    name before any of it has its own, the file last.

    Raises Fail: CONFLICT where there is something already, NO_SPACE, NO_ACCESS, IO_ERROR; then nothing
    is left.
    """
    _refuse_existing(path, with_output)
    private = f"{path}.{os.urandom(4).hex()}.new"
    try:
        try:
            os.close(os.open(private, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            copied = Copied(_fill(database, private, now))
            if with_output:  # after the queue: what is recorded there has its output on disk by then
                copied.files, copied.size = _copy_output(database.place, Place(private))
                os.rename(Place(private).folder, Place(path).folder)
            os.rename(private, path)
            sync_folder(os.path.dirname(path))
        except BaseException:
            _remove(private)
            raise
    except sqlite3.Error as error:
        raise explain(error, Place(path)) from error
    except OSError as error:
        raise from_system(error, path) from error
    return copied


def _refuse_existing(path: str, with_output: bool) -> None:
    if not os.path.isdir(os.path.dirname(path)):
        raise Fail("USAGE", f"FILE {path}: its folder does not exist", "make it first")
    # SQLite would replay a WAL that an older copy has left there into the new one.
    for ending in ("", "-wal", "-shm", "-journal", *([".d"] if with_output else [])):
        if os.path.lexists(path + ending):
            raise Fail("CONFLICT", f"{path}{ending} is there already", "name a file that is not, or remove all of it")


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


def _remove(private: str) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        try:
            os.unlink(private + ending)
        except OSError:
            pass
    from shutil import rmtree  # slow to load, and only a failure needs it

    rmtree(Place(private).folder, ignore_errors=True)


def _copy_output(source: Place, target: Place) -> tuple[int, int]:
    """How many files there were, and their bytes."""
    files = size = 0
    for folder in (target.folder, target.outputs):
        make_folder(folder)
    for name in _output_files(source):
        size += _copy(os.path.join(source.outputs, name), os.path.join(target.outputs, name))
        files += 1
    os.sync()
    return files, size


def _output_files(place: Place) -> Iterator[str]:
    """Paths below `place.outputs`; a link or a pipe is nobody's output."""
    for folder, _, names in os.walk(place.outputs, onerror=refuse):
        for path in [os.path.join(folder, name) for name in names]:
            if S_ISREG(os.lstat(path).st_mode):
                yield os.path.relpath(path, place.outputs)


def refuse(error: OSError) -> None:
    """A folder that cannot be read is not an empty one; one that was never made is."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _copy(source: str, target: str) -> int:
    """What the file holds now; a command that writes faster than this reads would else never be copied."""
    above = os.path.dirname(target)
    if not os.path.isdir(above):
        for folder in (os.path.dirname(above), above):
            make_folder(folder)
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        left = size = os.fstat(reader).st_size
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while left:
                piece = os.read(reader, min(CHUNK, left))
                if not piece:
                    break  # it was cut meanwhile
                _write(writer, piece)
                left -= len(piece)
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return size - left


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
