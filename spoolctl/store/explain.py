"""What errors of SQLite and of the system mean to the caller: the border behind which there is only Fail."""

from __future__ import annotations

import os
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS

from spoolctl.errors import Fail
from spoolctl.store.driver import sqlite3
from spoolctl.store.place import uri

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.place import Place

DAMAGE = "check the disk; then copy what is readable with: sqlite3 FILE .recover"
# What SQLite's messages mean: (part of the message, code, remedy). Python before 3.11 gives no codes.
MEANINGS = (
    ("Could not decode", "DAMAGED", DAMAGE),  # first, because it quotes what is in the file
    ("is locked", "LOCKED", "try again"),
    ("disk is full", "NO_SPACE", "make room on that disk, then try again"),
    ("mounted readonly", "READ_ONLY", "mount it for writing, or name a queue elsewhere with --db"),
    ("readonly", "READ_ONLY", "make the file and its folder writable for this user"),
    ("unable to open", "NO_ACCESS", "check that the file and its folder exist and are yours"),
    ("not a database", "NOT_A_QUEUE", "name another file with --db"),
    ("no such ", "DAMAGED", "its tables are not as spoolctl makes them; " + DAMAGE),
    ("unsupported file format", "DAMAGED", DAMAGE),
    ("malformed", "DAMAGED", DAMAGE),
)

# The same of the system's errors.
SYSTEM = {
    ENOSPC: ("NO_SPACE", "make room on that disk, then try again"),
    EDQUOT: ("NO_SPACE", "make room under your quota, then try again"),
    EACCES: ("NO_ACCESS", "check whose it is and its mode"),
    EPERM: ("NO_ACCESS", "check whose it is and its mode"),
    EROFS: ("READ_ONLY", "mount it for writing, or name a queue elsewhere with --db"),
}


def explain(error: sqlite3.Error, place: Place) -> Fail:
    """What an error of SQLite means to the caller."""
    said = str(error)
    if ("disk I/O" in said or "unable to open" in said) and _no_room(place.path):
        said += ": the disk is full"  # there was no room for the -wal or -shm file
    elif "unable to open" in said and _read_only(place.path):
        said = "its file system is mounted readonly"
    elif "unable to open" in said:
        refused = _refusal(os.path.join(place.bell, "bell"))
        if refused:
            return from_system(refused, place.path)
    elif "malformed" in said and _sound(place.path):
        return Fail("IO_ERROR", f"{place.path}: reading it has failed once", "check the disk, then try again")
    for part, code, remedy in MEANINGS:
        if part in said:
            who = _lock_holder(place.path) if code == "LOCKED" else ""
            return Fail(code, f"{place.path}: {said}{who}", remedy)
    if isinstance(error, sqlite3.OperationalError):
        remedy = "check the disk, its quota and the limit of file sizes (ulimit -f), then try again"
        return Fail("IO_ERROR", f"{place.path}: {said}", remedy)
    return Fail("INTERNAL", f"{place.path}: {type(error).__name__}: {said}", "please report this")


def foreign(connection: sqlite3.Connection, place: Place) -> Fail:
    """The refusal of an SQLite file that is not ours."""
    if not {"id", "argv", "state"} <= {row[1] for row in connection.execute("PRAGMA table_info(jobs)")}:
        return Fail("NOT_A_QUEUE", f"{place.path} is not a queue of spoolctl", "name another file with --db")
    said = f"{place.path} looks like a queue of an earlier spoolctl, whose files this one cannot read"
    return Fail("NOT_A_QUEUE", said, "let that one finish its jobs; then move the file away, or name another with --db")


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


def _refusal(bell: str) -> OSError | None:
    """What the system says where SQLite says no more than "unable to open": a disk that is gone, say. Asked
    of the bell: to open and close the queue file here would drop this process's own locks on it."""
    try:
        os.close(os.open(bell, os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        pass  # nobody has rung yet
    except OSError as error:
        return error
    return None


def _sound(path: str) -> bool:
    """A second look, because SQLite reports a read that failed as damage. False where there is some.
    https://www.sqlite.org/rescode.html#corrupt"""
    try:
        again = sqlite3.connect(uri(path, "ro"), uri=True)
        try:
            return bool(again.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        finally:
            again.close()
    except sqlite3.Error as error:
        return "disk I/O" in str(error)


def _read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _no_room(path: str) -> bool:
    try:
        disk = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return disk.f_bavail == 0 or (disk.f_files > 0 and disk.f_favail == 0)


def from_system(error: OSError, path: str) -> Fail:
    """What an error of the system means to the caller."""
    where = os.fsdecode(error.filename) if error.filename else path
    code, remedy = SYSTEM.get(error.errno or 0, ("IO_ERROR", "check the path and the disk, then try again"))
    return Fail(code, f"{where}: {error.strerror or error}", remedy)
