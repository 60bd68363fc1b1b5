"""What the measures share: a queue in a folder of its own, pairs measured in turn, one row a result."""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spoolctl.store.database import Database, open_queue
from spoolctl.store.place import Place
from spoolctl.store.submit import Submission, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
# The installed command is a plain script; so is this one.
COMMAND = [sys.executable, str(ROOT / "bin" / "spoolctl")]
SINGLE = [sys.executable, str(ROOT / "dist" / "spoolctl.py")]


class Row(NamedTuple):
    """One line of the table. ratio: as the target has it, ours to the peer's or the other way round."""

    what: str
    ours: str
    peer: str
    ratio: str
    target: str


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder on the disk that holds the temporary files. It is removed at the end of the run only:
    ext4 goes around the inodes of files that were removed lately (`recently_deleted` in its ialloc.c), which
    makes every new file dearer for minutes."""
    path = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    (path / ".spoolctl").mkdir(mode=0o700)
    yield path


def queue(path: Path) -> Database:
    """The queue in a folder, made where there is none."""
    return open_queue(Place(str(path / ".spoolctl" / "queue.db")), create_missing=True)


def fill(path: Path, jobs: int, *argv: str) -> None:
    """Put `jobs` commands in, through the store: a process for each would be most of the time."""
    database = queue(path)
    with database.write() as tx:
        for _ in range(jobs):
            submit(tx, int(time.time() * 1000), Submission([word.encode() for word in argv]))
    database.close()


def environment(path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(path), "LANG": "C.UTF-8"}


def call(command: list[str], path: Path, stdin: bytes = b"") -> float:
    """Seconds of one command in `path`; what it prints is thrown away."""
    began = time.perf_counter()
    subprocess.run(
        command,
        cwd=path,
        env=environment(path),
        input=stdin,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def begin(command: list[str], path: Path) -> subprocess.Popen[bytes]:
    """Start one command in `path`."""
    return subprocess.Popen(
        command, cwd=path, env=environment(path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def medians(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each, measured in turn, so that a machine that slows down slows all of them."""
    taken = [[measure() for measure in measures] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*taken)]


def until(condition: Callable[[], bool], pause: float = 0.0005) -> None:
    """Wait for a condition, for a minute at the most."""
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the measure waits in vain")
        time.sleep(pause)
