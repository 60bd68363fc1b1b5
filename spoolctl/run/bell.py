"""Rings the doorbell (`run/doorbell.py`). Apart from it, so that `add` loads nothing that listens."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.place import Place

FILE = "bell"


def ring(place: Place, stop: bool = False) -> None:
    """Tell every listener that the queue has changed. Never blocks, never fails.

    stop: those too who are busy and only want to hear that something is to be stopped.
    """
    for folder in (place.stop_bell, place.bell) if stop else (place.bell,):
        _touch(folder)


def _touch(folder: str) -> None:
    path = os.path.join(folder, FILE)
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        if os.path.islink(folder):
            return  # it may lead anywhere
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError:
            pass
    except OSError:
        pass


def last_rung(place: Place) -> float:
    """When anybody rang, in seconds since 1970; 0 where nobody ever did."""
    try:
        return os.stat(os.path.join(place.bell, FILE)).st_mtime
    except OSError:
        return 0.0
