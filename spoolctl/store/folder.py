"""Private folders that a power cut cannot take away again."""

from __future__ import annotations

import os


def make_folder(path: str) -> None:
    """It may exist: perhaps a maker was killed before it could sync it."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    sync_folder(os.path.dirname(path))


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
