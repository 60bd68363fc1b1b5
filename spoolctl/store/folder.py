"""Private folders that a power cut cannot take away again."""

from __future__ import annotations

import os
from stat import S_ISLNK

from spoolctl.errors import Fail


def make_folder(path: str) -> None:
    """It may exist: perhaps a maker was killed before it could sync it. Raises Fail("UNSAFE_QUEUE") where
    somebody else has put a link there, which leads where he wants."""
    above = os.path.dirname(path)
    try:
        os.mkdir(path, 0o700)
        give(path, above)
    except FileExistsError:
        found = os.lstat(path)
        if S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
            said = f"{path} is a link of user {found.st_uid}"
            raise Fail("UNSAFE_QUEUE", said, "remove it, or name another file with --db") from None
    sync_folder(above)


def give(file: int | str, folder: str) -> None:
    """What root makes in another user's queue is that user's, or he could not go on with it. SQLite does
    the same with -wal and -shm."""
    if os.geteuid() == 0:
        owner = os.stat(folder)
        if owner.st_uid:
            os.chown(file, owner.st_uid, owner.st_gid)


def sync_folder(path: str) -> None:
    """Else a power cut may take what is new in it, with everything that is in that (fsync(2): "an explicit
    fsync on a file descriptor for the directory is also needed")."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return  # one may pass through it, and not read it: then it is not ours to make safe
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
