"""What one submission costs, beside the interpreter that it needs and the tools of other kinds."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from bench.tools import COMMAND, SINGLE, Row, call, fill, folder, medians

if TYPE_CHECKING:
    from pathlib import Path


def submit_one(rounds: int) -> list[Row]:
    """`add` of one job to a queue that exists."""
    with folder() as path:
        fill(path, 1, "true")
        bare = [sys.executable, "-c", "pass"]
        sqlite = [sys.executable, "-c", "import sqlite3"]
        commands = [[*COMMAND, "add", "true"], [*SINGLE, "add", "true"], bare, sqlite, *others(path)]
        for command in commands:
            call(command, path)  # once for the bytecode and the caches
        times = medians(rounds * 5, *[lambda command=command: call(command, path) for command in commands])  # type: ignore[misc]
        ours, single, plain, floor, *rest = times
        rows = [
            Row("add of one job", ms(ours), f"import sqlite3 {ms(floor)}", f"{ours / floor:.2f}", "<= 1.3"),
            Row("the same, single file", ms(single), f"import sqlite3 {ms(floor)}", f"{single / floor:.2f}", "<= 1.8"),
            Row("add of one job", ms(ours), f"bare python {ms(plain)}", f"{ours / plain:.2f}", ""),
        ]
        for command, taken in zip(others(path), rest):
            rows.append(Row("add of one job", ms(ours), f"{command[0]} {ms(taken)}", f"{ours / taken:.2f}", ""))
        return rows + [Row("add of one job", "", f"{name}: not installed", "", "") for name in missing()]


def others(path: Path) -> list[list[str]]:
    """Submitting to task-spooler and to nq, where they are installed."""
    known = {"tsp": ["tsp", "true"], "nq": ["nq", "-q", "true"]}
    return [command for name, command in known.items() if shutil.which(name)]


def missing() -> list[str]:
    return [name for name in ("tsp", "nq") if not shutil.which(name)]


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
