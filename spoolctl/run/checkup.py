"""The checks of `doctor`, each with what was found and what to do about it. Read-only.

result: "ok"; "look": it works, but somebody should look; "failed": not ready.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3

from spoolctl.errors import Fail
from spoolctl.limits import FOLDER, SCHEMA_VERSION
from spoolctl.run import health
from spoolctl.run.fence import live_markers
from spoolctl.run.ownership import refuse_unsafe
from spoolctl.store import database, invariants
from spoolctl.store.filesystem import UNFIT, mount_of
from spoolctl.store.place import absent
from spoolctl.text import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.context import Context
    from spoolctl.store.database import Database
    from spoolctl.store.place import Place

SQLITE_FLOOR = (3, 31, 0)
WAL_LARGE = 64 << 20  # bytes; the automatic checkpoint keeps it near 4 MiB
SPACE_SMALL = 64 << 20  # bytes


def examine(context: Context, deep: bool, trust: bool) -> list[dict[str, Any]]:
    """Every check that can be made; those behind a failed opening are left out, and that is said.

    trust: what `work --trust` accepts is no failure.
    """
    checks = [_sqlite()]
    try:
        place = context.place()
        checks += [_file_system(place, trust), _space(place), _owner(place, trust)]
        if absent(place.path):
            return [*checks, _no_queue(place)]
        opened = database.open_queue(place, read_only=True)
    except Fail as fail:
        return [*checks, _check("queue", "failed", fail.message, fail.hint)]
    try:
        checks.append(_check("queue", "ok", f"{place.path}, schema version {SCHEMA_VERSION}"))
        checks += [_writable(opened), _locks(opened), _wal(opened), *_people(opened, context)]
        if deep:
            checks += [_integrity(opened), _rules(opened), _survivors(opened)]
    except Fail as fail:
        checks.append(_check("reading", "failed", fail.message, fail.hint))
    opened.close()
    return checks


def _check(name: str, result: str, found: str, remedy: str = "") -> dict[str, Any]:
    return {"check": name, "result": result, "found": found, "remedy": remedy}


def _sqlite() -> dict[str, Any]:
    if sqlite3.sqlite_version_info < SQLITE_FLOOR:
        return _check("sqlite", "failed", sqlite3.sqlite_version, "3.31 is the oldest that works")
    if _loses_resets(sqlite3.sqlite_version_info):
        note = "; before 3.51.3 another program that loops PRAGMA wal_checkpoint(PASSIVE) on the file can damage it"
        return _check("sqlite", "ok", sqlite3.sqlite_version + note)
    return _check("sqlite", "ok", sqlite3.sqlite_version)


def _loses_resets(version: tuple[int, ...]) -> bool:
    """Whether that SQLite has the WAL-reset defect. spoolctl itself never provokes it: it leaves
    checkpoints to SQLite's own automatic ones. https://www.sqlite.org/wal.html"""
    fixed = version >= (3, 51, 3) or (version[:2] in ((3, 50), (3, 44)) and version[2] >= {50: 7, 44: 6}[version[1]])
    return not fixed


def _file_system(place: Place, trust: bool) -> dict[str, Any]:
    found = mount_of(place.path)
    if found is None:
        return _check("filesystem", "ok", "the system does not tell")
    kind, point = found
    if kind in UNFIT:
        return _check("filesystem", "look" if trust else "failed", f"{kind}: {UNFIT[kind]}", "use a local disk")
    return _check("filesystem", "ok", f"{kind}, mounted at {point}")


def _space(place: Place) -> dict[str, Any]:
    """Of the nearest folder that is there. What is kept for the superuser does not count."""
    folder = os.path.dirname(place.path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    disk = os.statvfs(folder)
    free, files = disk.f_bavail * disk.f_frsize, disk.f_favail
    if free == 0 or (disk.f_files and files == 0):
        return _check("space", "failed", "the disk is full" if free == 0 else "no more files fit", "make room on it")
    if free < SPACE_SMALL:
        return _check("space", "look", f"{size(free)} free", "make room; what does not fit is refused, and waits")
    return _check("space", "ok", f"{size(free)} free")


def _owner(place: Place, trust: bool) -> dict[str, Any]:
    try:
        refuse_unsafe(place)
    except Fail as fail:
        if trust:
            return _check("owner", "look", fail.message, "nothing, where you trust them")
        return _check("owner", "failed", fail.message, fail.hint)
    return _check("owner", "ok", "nobody else can write it")


def _locks(opened: Database) -> dict[str, Any]:
    """Whether a lock that one descriptor holds is seen by another: the proof of a worker's death rests
    on it. Tried on the folder, for a moment, so that nothing has to be written."""
    descriptors = []
    try:
        descriptors = [os.open(opened.place.folder, os.O_RDONLY | os.O_CLOEXEC) for _ in range(2)]
        fcntl.flock(descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptors[1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _check("locks", "ok", "a lock that one holds keeps out others")
    except FileNotFoundError:
        return _check("locks", "look", f"{opened.place.folder} is not there", "the next add or work makes it")
    except PermissionError as error:
        return _check("locks", "look", f"cannot be tried: {error.strerror}", "ask as the user whose queue it is")
    except OSError as error:
        return _check("locks", "failed", f"flock: {error.strerror}", "use a file system with locks")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return _check("locks", "failed", "two can hold one lock at the same time", "use a file system with locks")


def _no_queue(place: Place) -> dict[str, Any]:
    """There is none: whether the first `add` could make it."""
    folder = os.path.dirname(place.path)
    if os.path.basename(folder) == FOLDER and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    found = f"there is none at {place.path}"
    if not os.path.isdir(folder):
        return _check("queue", "failed", f"{found}, and the folder {folder} does not exist", "make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        return _check("queue", "failed", f"{found}, and {folder} is not writable", "name a place of yours with --db")
    return _check("queue", "look", found, "the first 'add' makes it")


def _writable(opened: Database) -> dict[str, Any]:
    place = opened.place
    folders = (os.path.dirname(place.path), place.folder, place.outputs, place.workers, place.bell)
    mine = os.path.join(place.outputs, opened.queue_id)
    for path in (*folders, *([mine] if os.path.lexists(mine) else [])):
        if os.path.lexists(path) and not os.path.isdir(path):
            return _check("writing", "failed", f"{path} is no folder", "remove it and make a folder, mode 0700")
    for path in (place.path, *folders):
        if not os.access(path, os.W_OK):
            if not os.path.exists(path):
                return _check("writing", "look", f"{path} is missing", "the next add or work makes it")
            return _check("writing", "look", f"{path} is not writable", "readers work; to add or work, make it yours")
    return _check("writing", "ok", "file and folders are writable")


def _wal(opened: Database) -> dict[str, Any]:
    try:
        length = os.path.getsize(opened.place.path + "-wal")
    except OSError:
        length = 0
    if length > WAL_LARGE:
        remedy = "a process that has stopped while it reads holds it back: let it go on, or end it"
        return _check("wal", "look", size(length), remedy)
    return _check("wal", "ok", size(length))


def _people(opened: Database, context: Context) -> list[dict[str, Any]]:
    """Workers, queues and attempts that need somebody."""
    with opened.read() as tx:
        judged = health.workers(tx, opened, context)
        findings = health.findings(tx, judged, context.clock.wall())
    alive = sum(worker["state"] == "alive" for worker in judged)
    return [
        _check("workers", "ok", f"{alive} alive of {len(judged)} on the roll"),
        *(_check("attention", "look", found, remedy) for found, remedy in findings),
    ]


def _integrity(opened: Database) -> dict[str, Any]:
    with opened.read() as tx:
        said = [row[0] for row in tx.execute("PRAGMA integrity_check(5)")]
    if said != ["ok"]:
        return _check("integrity", "failed", "; ".join(said), "copy what is readable: sqlite3 FILE .recover")
    return _check("integrity", "ok", "SQLite finds the file sound")


def _rules(opened: Database) -> dict[str, Any]:
    with opened.read() as tx:
        broken = invariants.violations(tx)
    if broken:
        return _check("rules", "failed", "; ".join(broken), "this is a defect of spoolctl; please report it")
    return _check("rules", "ok", f"{len(invariants.RULES)} rules hold")


def _survivors(opened: Database) -> dict[str, Any]:
    """Processes of attempts that are settled. These are read first: what is settled is gone already."""
    with opened.read() as tx:
        settled = invariants.settled_markers(tx)
    alive = live_markers()
    left = [f"process {pid} of job {settled[mark][0]}" for mark, pid in alive.items() if mark in settled]
    if left:
        return _check("survivors", "failed", ", ".join(left), "end them by hand; and please report this")
    return _check("survivors", "ok", "no process of a settled attempt is alive")
