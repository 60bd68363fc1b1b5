"""`make bench`: measures beside the alternatives, in one run, and reports ratios.

Absolute times mean nothing on another machine, so every row has a peer that was measured in turn
with it. Each measure is repeated, ours and the peer's alternating; the medians count. Results go
to bench/RESULTS.md, with machine and date. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import bulk, draining, starting, waiting
from bench.tools import ROOT, Row

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = ROOT / "bench" / "RESULTS.md"
MEASURES: dict[str, Callable[[int], list[Row]]] = {
    "start": starting.submit_one,
    "bulk": bulk.submit_many,
    "drain": draining.drain,
    "contention": draining.contention,
    "latency": waiting.latency,
    "idle": waiting.idle,
    "recovery": waiting.recovery,
    "memory": waiting.memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measures", nargs="*", default=list(MEASURES), help=f"of {', '.join(MEASURES)}; default all")
    parser.add_argument("--rounds", type=int, default=5, help="how often each measure is repeated")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it set, every start compiles everything
    rows = [row for name in arguments.measures for row in MEASURES[name](arguments.rounds)]
    text = table(rows)
    print(text)
    if arguments.measures == list(MEASURES):
        RESULTS.write_text(heading() + text)
    return 0


def heading() -> str:
    return (
        "# Results of one run of `make bench`\n\n"
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}. Ratios within a row were measured in "
        "the same run;\nthe absolute numbers mean nothing elsewhere.\n\n"
    )


def table(rows: list[Row]) -> str:
    lines = ["| what | ours | peer | ratio | target |", "|---|---|---|---|---|"]
    lines += [f"| {row.what} | {row.ours} | {row.peer} | {row.ratio} | {row.target} |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
