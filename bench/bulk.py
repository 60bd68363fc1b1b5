"""What a hundred thousand submissions cost."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from bench.tools import COMMAND, Row, call, folder, medians

if TYPE_CHECKING:
    from pathlib import Path

JOBS = 100_000


def submit_many(rounds: int) -> list[Row]:
    """`add --batch` of a file of 100,000 lines, and of a tenth of it for the memory."""
    with folder() as path:
        write(path / "all", JOBS)
        write(path / "tenth", JOBS // 10)
        floor, taken = medians(max(1, rounds // 2), lambda: reading(path / "all"), lambda: batch(path, "all"))
        small, large = peak(path, "tenth"), peak(path, "all")
    rate, parsed = f"{JOBS / taken:,.0f} jobs/s", f"json.loads of each {JOBS / floor:,.0f}/s"
    mine, tenth = f"{large / 1024:.0f} MiB", f"10,000 jobs {small / 1024:.0f} MiB"
    return [
        Row("add --batch of 100,000 jobs", rate, parsed, f"{taken / floor:.1f}", "50,000 jobs/s"),
        Row("its memory", mine, tenth, f"{large / small:.2f}", "flat"),
    ]


def write(path: Path, jobs: int) -> None:
    path.write_text("".join(f'{{"argv": ["true", "{number}"]}}\n' for number in range(jobs)))


def batch(path: Path, name: str) -> float:
    for old in (path / ".spoolctl").glob("*.db*"):
        if old.is_file():
            old.unlink()
    return call([*COMMAND, "add", "--batch", name], path)


def reading(path: Path) -> float:
    """Seconds that the same interpreter needs to do no more than parse the lines."""
    script = f"import json\nfor line in open({str(path)!r}): json.loads(line)"
    return call([COMMAND[0], "-c", script], path.parent)


def peak(path: Path, name: str) -> int:
    """KiB. The largest child so far, so the smaller one has to be measured first."""
    batch(path, name)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
