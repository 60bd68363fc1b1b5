"""`make bench`: measures beside the alternatives, in one run, and reports ratios.

Absolute times mean nothing on another machine, so every row has a peer that was measured in turn
with it. Each measure is run several times, ours and the peer's alternating; the medians count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
SPOOLCTL = [sys.executable, "-m", "spoolctl"]


class Row(NamedTuple):
    """One line of the table. ratio: ours to the peer's, so that `target` can be read beside it."""

    what: str
    ours: str
    peer: str
    ratio: float
    target: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each measure is repeated")
    rounds = parser.parse_args().rounds
    rows = [drain(rounds)]
    print(f"{'what':<44}{'ours':>14}{'peer':>22}{'ratio':>8}  target")
    for row in rows:
        print(f"{row.what:<44}{row.ours:>14}{row.peer:>22}{row.ratio:>8.2f}  {row.target}")
    return 0


def drain(rounds: int, jobs: int = 2000) -> Row:
    """Short commands from a full queue, two at once, against xargs with nothing to remember."""
    ours, peers = alternate(rounds, lambda: drain_ours(jobs), lambda: drain_xargs(jobs))
    return Row(
        f"drain {jobs} × true, --jobs 2",
        f"{jobs / ours:.0f}/s",
        f"xargs -P2 {jobs / peers:.0f}/s",
        peers / ours,
        ">= 0.60",
    )


def drain_ours(jobs: int) -> float:
    """Seconds of `work --drain`; the submissions before it are not counted."""
    with tempfile.TemporaryDirectory() as folder:
        fill = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + FILL
        subprocess.run([sys.executable, "-c", fill, folder, str(jobs)], check=True)
        began = time.perf_counter()
        run([*SPOOLCTL, "work", "--drain", "--jobs", "2"], folder)
        return time.perf_counter() - began


# Through the store: a process for each submission would be most of the bench's time.
FILL = """
import os
from spoolctl.store.database import open_queue
from spoolctl.store.place import Place
from spoolctl.store.submit import Submission, submit
folder, jobs = sys.argv[1], int(sys.argv[2])
database = open_queue(Place(os.path.join(folder, ".spoolctl", "queue.db")), create_missing=True)
with database.write() as tx:
    for _ in range(jobs):
        submit(tx, 0, Submission([b"true"]))
"""


def drain_xargs(jobs: int) -> float:
    """Seconds of `xargs -P2 -n1 true`."""
    words = "\n".join(map(str, range(jobs))).encode()
    began = time.perf_counter()
    subprocess.run(["xargs", "-P2", "-n1", "true"], input=words, check=True)
    return time.perf_counter() - began


def alternate(rounds: int, one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """The median of each, measured in turn, so that a machine that slows down slows both."""
    pairs = [(one(), other()) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def run(command: list[str], folder: str) -> None:
    """Run one of our commands in `folder`, its text thrown away."""
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": folder}
    subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


if __name__ == "__main__":
    raise SystemExit(main())
