"""Where a queue is: the rule that finds its file, and the folder that belongs to it.

The folder carries the file's name, so that two queues in one directory share nothing. Nothing
here creates anything; `database.create` does.
"""

from __future__ import annotations

import os
from stat import S_ISREG

from spoolctl.errors import Fail
from spoolctl.limits import FILE, FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Place:
    """The paths of one queue. path: its file, absolute."""

    def __init__(self, path: str) -> None:
        # POSIX leaves "//" at the start to the system, and in a URI it would name a host.
        path = "/" + path.lstrip("/")
        # SQLite follows a link to the file; the folder has to be the same by either name.
        self.path = path = os.path.realpath(path) if os.path.islink(path) else path
        self.folder = path + ".d"
        self.outputs = os.path.join(self.folder, "output")
        self.workers = os.path.join(self.folder, "workers")
        self.bell = os.path.join(self.folder, "bell")
        self.stop_bell = os.path.join(self.bell, "stop")

    def output(self, queue_id: str, job: int, attempt: int) -> str:
        """The path of an attempt's output, less its ending (`.stdout` or `.stderr`).

        A thousand jobs share a folder, so that none grows without end. The queue's id keeps a
        new queue in the place of a removed one from showing or overwriting the old one's output.
        """
        return f"{self.outputs}/{queue_id}/{job // 1000}/{job}.{attempt}"


def find(db: str | None, environ: Mapping[str, str], cwd: Callable[[], str]) -> Place:
    """The queue that `--db` (None: not given), the environment and the directory name.

    cwd: asked only where a path is relative; the directory may be gone. Raises Fail where `--db` or
    $SPOOLCTL_DB is empty: that is a mistake, not "unset".
    """
    named = db if db is not None else environ.get("SPOOLCTL_DB")
    if named is not None:
        if not named:
            raise Fail("USAGE", "SPOOLCTL_DB is empty", "unset it, or set it to the path of a queue file")
        return Place(os.path.normpath(named if os.path.isabs(named) else os.path.join(cwd(), named)))
    here = cwd()
    return Place(_nearest(here) or os.path.join(here, FOLDER, FILE))


def _nearest(cwd: str) -> str | None:
    """The first `.spoolctl/queue.db` in `cwd` or a directory above it."""
    directory = cwd
    while True:
        path = os.path.join(directory, FOLDER, FILE)
        if _may_exist(path):
            return path
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above


def absent(path: str) -> bool:
    """Whether there is no file, or an empty one, as `mktemp` leaves it.

    Raises Fail("NO_ACCESS") where that may not be seen: a queue of somebody else is not no queue.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        raise Fail("NO_ACCESS", f"{path}: {error.strerror}", "is it another user's? name yours with --db") from error
    return S_ISREG(found.st_mode) and found.st_size == 0


def _may_exist(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # it may be there: then going on to a queue further up would be wrong
    return True


def uri(path: str, mode: str) -> str:
    """What SQLite opens. A URI, because only a URI can say "never create"; `?`, `#`, `%`, spaces and
    odd bytes in it are percent-encoded. https://www.sqlite.org/uri.html"""
    if not path.replace("/", "").replace(".", "").replace("_", "").replace("-", "").isalnum() or not path.isascii():
        plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"
        path = "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in os.fsencode(path))
    return f"file:{path}?mode={mode}"
