"""How fast a full queue of short commands empties: one worker, and many."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from bench.tools import COMMAND, Row, begin, call, fill, folder, medians, queue, until
from spoolctl.run.bell import ring

if TYPE_CHECKING:
    from pathlib import Path

    from spoolctl.store.database import Database

JOBS = 2000
FEW = 400  # for peers that are much slower


def drain(rounds: int) -> list[Row]:
    """2,000 `true`, two at once, fully durable, beside tools that remember nothing."""
    with folder() as path:
        times = medians(rounds, lambda: ours(path), lambda: xargs(path), lambda: parallel(path))
    rate, xargs_rate, parallel_rate = JOBS / times[0], JOBS / times[1], FEW / times[2] if times[2] else 0.0
    rows = [row(rate, "xargs -P2", xargs_rate, ">= 0.6")]
    if parallel_rate:
        rows.append(row(rate, "parallel -j2", parallel_rate, ">= 2"))
    else:
        rows.append(Row(WHAT, "", "parallel: not installed", "", ""))
    return rows


WHAT = "drain of short commands, --jobs 2"


def row(rate: float, peer: str, peer_rate: float, target: str) -> Row:
    return Row(WHAT, f"{rate:.0f}/s", f"{peer} {peer_rate:.0f}/s", f"{rate / peer_rate:.2f}", target)


def ours(path: Path) -> float:
    fill(path, JOBS, "true")
    return call([*COMMAND, "work", "--drain", "--jobs", "2"], path)


def xargs(path: Path) -> float:
    return call(["xargs", "-P2", "-n1", "true"], path, "\n".join(map(str, range(JOBS))).encode())


def parallel(path: Path) -> float:
    if not shutil.which("parallel"):
        return 0.0
    return call(["parallel", "-j2", "true"], path, "\n".join(map(str, range(FEW))).encode())


def contention(rounds: int) -> list[Row]:
    """Sixteen workers on one queue beside two; none may fail."""
    many, few = medians(max(1, rounds // 2), lambda: workers(16), lambda: workers(2))
    return [
        Row(
            "16 workers on one queue, --jobs 1",
            f"{JOBS / many:.0f}/s",
            f"2 workers {JOBS / few:.0f}/s",
            f"{few / many:.2f}",
            ">= 1",
        )
    ]


def workers(count: int) -> float:
    """Seconds from the submission of 2,000 jobs to the last result; the workers wait for them."""
    with folder() as place:
        database = queue(place)
        started = [begin([*COMMAND, "work"], place) for _ in range(count)]
        until(lambda: number(database, "SELECT COUNT(*) FROM workers") == count)
        began = time.perf_counter()
        fill(place, JOBS, "true")
        ring(database.place)
        until(lambda: number(database, "SELECT SUM(n) FROM counts WHERE state = 'done'") == JOBS, 0.005)
        taken = time.perf_counter() - began
        for process in started:
            process.terminate()
        codes = [process.wait() for process in started]
        if any(codes):
            raise RuntimeError("a worker has failed")
    return taken


def number(database: Database, query: str) -> int:
    with database.read() as tx:
        return int(tx.execute(query).fetchone()[0] or 0)
