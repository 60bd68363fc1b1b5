"""What an idle worker costs, how soon it starts what comes in, and how soon a dead one is replaced."""

from __future__ import annotations

import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.tools import COMMAND, Row, begin, fill, folder, queue, until
from spoolctl.run.bell import ring
from spoolctl.store.submit import Submission, submit

if TYPE_CHECKING:
    from spoolctl.store.database import Database

SUBMISSIONS = 200
IDLE_SECONDS = 10.0
CLOCK = [b"date", b"+%s.%N"]


def latency(rounds: int) -> list[Row]:
    """From COMMIT of a submission to the command's own first act, on an idle worker; and beside it
    what that command needs when it is started directly."""
    with folder() as path:
        database = queue(path)
        worker = begin([*COMMAND, "work"], path)
        took = sorted(one(database) for _ in range(SUBMISSIONS))
        stop(worker)
        direct = statistics.median(alone() for _ in range(50))
    median, late = took[len(took) // 2], took[int(len(took) * 0.99) - 1]
    peer = f"started directly {ms(direct)}"
    return [
        Row("submit → command runs, idle worker, median", ms(median), peer, f"{median / direct:.1f}", "5 ms"),
        Row("the same, 99 %", ms(late), peer, f"{late / direct:.1f}", "30 ms"),
    ]


def one(database: Database) -> float:
    """The command tells the time at which it ran; files keep it only to a few milliseconds."""
    with database.write() as tx:
        job = submit(tx, int(time.time() * 1000), Submission(CLOCK)).job
    began = time.time()
    ring(database.place)
    until(lambda: settled(database))
    path = database.place.output(database.queue_id, job, 1) + ".stdout"
    return float(Path(path).read_text()) - began


def settled(database: Database) -> bool:
    with database.read() as tx:
        return not tx.execute("SELECT 1 FROM counts WHERE state IN ('queued', 'running') AND n > 0").fetchone()


def alone() -> float:
    began = time.time()
    return float(subprocess.run(CLOCK, check=True, capture_output=True).stdout) - began


def idle(rounds: int) -> list[Row]:
    """Processor time of a worker that has nothing to do, beside a process that only sleeps."""
    with folder() as path:
        fill(path, 1, "true")
        worker, sleeper = begin([*COMMAND, "work"], path), begin(["sleep", "60"], path)
        time.sleep(2.0)  # past its start; what is measured is time, so it has to pass
        before = [ticks(worker), ticks(sleeper)]
        time.sleep(IDLE_SECONDS)
        used, slept = (after - then for after, then in zip([ticks(worker), ticks(sleeper)], before))
        stop(worker)
        stop(sleeper)
    ours, peer = used / IDLE_SECONDS, slept / IDLE_SECONDS  # hundredths of a second a second: per cent
    return [Row("idle worker, 10 s", f"{ours:.2f} % of a core", f"sleep {peer:.2f} %", "", "< 0.1 %")]


def ticks(process: subprocess.Popen[bytes]) -> int:
    """Hundredths of a second of processor time so far: proc(5), utime and stime."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def recovery(rounds: int) -> list[Row]:
    """From SIGKILL of a worker to the requeue of its job by an idle peer."""
    took = []
    with folder() as path:
        database = queue(path)
        for _ in range(rounds * 2):
            fill(path, 1, "sleep", "60")
            victim = begin([*COMMAND, "work", "--jobs", "1"], path)
            until(lambda: state(database) == "running")
            peer = begin([*COMMAND, "work", "--jobs", "1"], path)
            until(lambda: workers(database) == 2)
            time.sleep(0.3)
            victim.kill()
            began = time.monotonic()
            until(lambda: state(database) != "running")
            took.append(time.monotonic() - began)
            with database.write() as tx:
                tx.execute("UPDATE jobs SET state = 'canceled', ready = NULL WHERE state = 'failed'")
            stop(peer)
            victim.wait()
    median = statistics.median(took)
    return [Row("dead worker → its job requeued", ms(median), f"slowest of {len(took)}: {ms(max(took))}", "", "< 1 s")]


def state(database: Database) -> str:
    with database.read() as tx:
        return str(tx.execute("SELECT state FROM jobs ORDER BY id DESC LIMIT 1").fetchone()[0])


def workers(database: Database) -> int:
    with database.read() as tx:
        return int(tx.execute("SELECT COUNT(*) FROM workers").fetchone()[0])


def memory(rounds: int) -> list[Row]:
    """Resident memory of a worker beside a queue of one job and one of 100,000."""
    small, large = resident(1), resident(100_000)
    ours, peer = f"{large / 1024:.0f} MiB", f"1 job: {small / 1024:.0f} MiB"
    return [Row("worker memory, 100,000 jobs queued", ours, peer, f"{large / small:.2f}", "30 MiB")]


def resident(jobs: int) -> int:
    """KiB at its highest, while it works for a moment."""
    with folder() as path:
        fill(path, jobs, "true")
        worker = begin([*COMMAND, "work"], path)
        time.sleep(2.0)
        peak = next(
            int(line.split()[1])
            for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        stop(worker)
    return peak


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
