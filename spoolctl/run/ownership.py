"""A worker refuses a queue that others can write: whoever writes the queue runs commands as you.

Called by `work` before anything is opened; `--trust` is for those who know who the others are,
like root in a container with a mounted folder of another user.
"""

from __future__ import annotations

import os
import stat

from spoolctl.errors import Fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.place import Place


def refuse_unsafe(place: Place) -> None:
    """Raise Fail("UNSAFE_QUEUE") where somebody other than this user and root can write the file or
    put another one in its place. What is not there yet is safe: it will be made private."""
    inner = [place.outputs, place.workers, place.bell]
    try:
        inner += [entry.path for entry in os.scandir(place.outputs)]
    except OSError:
        pass
    for path in (place.path, place.folder, os.path.dirname(place.path), *inner):
        try:
            link, found = os.lstat(path), os.stat(path)
        except OSError:
            continue
        if link.st_uid not in (os.geteuid(), 0):
            found = link  # a link of somebody else leads where he wants
        why = _writer(found, is_folder=path == os.path.dirname(place.path))
        if why:
            raise Fail(
                "UNSAFE_QUEUE",
                f"{path} {why}, who could run commands as you",
                "make it yours alone (chown, chmod go-w), or say --trust if you mean it",
            )


def _writer(found: os.stat_result, is_folder: bool) -> str:
    """Who else may write, or "". In a folder with the sticky bit only its owner and a file's owner
    may replace the file; a folder's group may where it is this user's own group (umask 002)."""
    me = os.geteuid()
    if found.st_uid not in (me, 0):
        return f"belongs to user {found.st_uid}"
    loose = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_folder and found.st_mode & stat.S_ISVTX:
        return ""
    if is_folder and found.st_gid == os.getegid():
        loose &= ~stat.S_IWGRP
    if loose & stat.S_IWOTH:
        return "can be written by everybody"
    return f"can be written by group {found.st_gid}" if loose else ""
