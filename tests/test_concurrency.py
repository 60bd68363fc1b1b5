"""Many workers on one queue: every job runs once, and nobody fails."""

from __future__ import annotations

import json
import signal
import sqlite3

from spoolctl.run.bell import ring
from spoolctl.store.database import open_queue
from spoolctl.store.submit import Submission, submit
from tests.conftest import Spool

JOBS, WORKERS = 200, 8


def test_eight_workers_run_two_hundred_jobs_each_exactly_once(spool: Spool) -> None:
    """Protects the claim: choosing, marking and recording in one transaction that holds the write lock."""
    # Everybody is there, and has run something, before the first of the jobs that are counted.
    first = [spool.add("--queue", f"q{number}", "--", "true") for number in range(WORKERS)]
    workers = [spool.worker("--json", "--queue", "shared", "--queue", f"q{number}") for number in range(WORKERS)]
    for job in first:
        spool.until_state(job, "done")

    database = open_queue(spool.place)
    with database.write() as tx:
        for _ in range(JOBS):
            wanted = Submission([b"sh", b"-c", b"echo $SPOOLCTL_JOB_ID >> ran"])
            wanted.queue = "shared"
            submit(tx, 0, wanted)
    ring(spool.place)
    database.close()

    connection = sqlite3.connect(spool.place.path)
    left = "SELECT count(*) FROM jobs WHERE queue = 'shared' AND state <> 'done'"
    spool.until(lambda: connection.execute(left).fetchone() == (0,), "the end of all jobs")
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0] * WORKERS

    ran = sorted(map(int, (spool.folder / "ran").read_text().split()))
    assert ran == [id for (id,) in connection.execute("SELECT id FROM jobs WHERE queue = 'shared' ORDER BY id")]
    assert len(ran) == JOBS
    assert connection.execute("SELECT count(*), max(number) FROM attempts").fetchone() == (JOBS + WORKERS, 1)
    events = dict(connection.execute("SELECT event, count(*) FROM events GROUP BY event"))
    assert events == dict.fromkeys(("added", "claimed", "succeeded"), JOBS + WORKERS)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    answers = [json.loads(log.read_text().splitlines()[-1]) for log in spool.folder.glob("worker-*.log")]
    assert sum(answer["executed"] for answer in answers) == JOBS + WORKERS
    assert all("error" not in answer for answer in answers)
