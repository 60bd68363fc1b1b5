"""A newer spoolctl brings the file up to date while workers of the older one use it.

Tomorrow's program is today's with one migration more, in a folder of its own.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spoolctl import limits
from spoolctl.store.database import open_queue
from tests.conftest import FAST, ROOT, Spool
from tests.crash import soundness

if TYPE_CHECKING:
    from collections.abc import Iterator

NEXT = limits.SCHEMA_VERSION + 1
STEP = f"""
STEPS[{NEXT}] = (
    "ALTER TABLE jobs ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'",
    "CREATE INDEX jobs_colour ON jobs (colour, created_at)",
)
"""
MANY = "INSERT INTO jobs (state, queue, priority, due_at, first_due, max_retries, timeout, created_at, argv) SELECT"
MANY += " 'done', 'old', 0, 1, 1, 0, 1, 1, x'7472756500' FROM (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1"
MANY += " FROM c WHERE n < 40000) SELECT n FROM c)"


@pytest.fixture
def tomorrow(spool: Spool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spool]:
    """The same queue through the newer program."""
    folder = tmp_path_factory.mktemp("tomorrow")
    shutil.copytree(ROOT / "spoolctl", folder / "spoolctl", ignore=shutil.ignore_patterns("__pycache__"))
    facts = folder / "spoolctl" / "limits.py"
    facts.write_text(facts.read_text().replace(f"SCHEMA_VERSION = {limits.SCHEMA_VERSION}", f"SCHEMA_VERSION = {NEXT}"))
    with open(folder / "spoolctl" / "store" / "migrations.py", "a") as steps:
        steps.write(STEP)
    newer = Spool(spool.folder)
    newer.command = [sys.executable, "-m", "spoolctl"]
    newer.env = {**spool.env, "PYTHONPATH": str(folder)}
    yield newer
    newer.close()


def log(spool: Spool, number: int) -> str:
    return Path(spool.folder / f"worker-{number}.log").read_text()


def test_workers_of_the_older_program_finish_what_they_run_and_leave(spool: Spool, tomorrow: Spool) -> None:
    """Protects the look at the version in the loop: without it an old worker would go on claiming from a
    file that it does not understand."""
    long = [spool.add("-c", "until [ -e go ]; do sleep 0.02; done; echo $SPOOLCTL_JOB_ID >>ran") for _ in range(2)]
    workers = [spool.worker("--jobs", "1", **FAST) for _ in range(2)]
    for job in long:
        spool.until_state(job, "running")
    later = tomorrow.add("-c", "echo $SPOOLCTL_JOB_ID >>ran")
    spool.until(lambda: all("then leaving" in log(spool, n) for n in (0, 1)), "both notice")
    assert all(worker.poll() is None for worker in workers), "they wait for what they run"
    (spool.folder / "go").touch()
    assert [worker.wait(60) for worker in workers] == [3, 3]
    assert [job["state"] for job in tomorrow.json("list")["jobs"]] == ["queued", "done", "done"]
    assert tomorrow.json("workers")["workers"] == [], "they have left the roll"
    tomorrow.run("work", "--drain")
    ran = (spool.folder / "ran").read_text().split()
    assert sorted(map(int, ran)) == sorted([*long, later]), "each once"
    assert tomorrow.job(long[0])["attempts"] == 1


def test_a_large_file_is_migrated_while_others_use_it(spool: Spool, tomorrow: Spool) -> None:
    """Nobody sees an error but those who are too old, and no job is lost or run twice."""
    spool.add("true")
    database = open_queue(spool.place)
    with database.write() as tx:
        tx.execute(MANY)
    database.close()
    short = [spool.add("-c", "echo $SPOOLCTL_JOB_ID >>ran") for _ in range(150)]
    worker = spool.worker("--jobs", "2", **FAST)
    spool.until(lambda: (spool.folder / "ran").exists(), "it has begun")
    counts = tomorrow.json("add", "--", "true")
    assert counts["state"] == "queued"
    assert worker.wait(60) == 3
    assert b"NEWER_QUEUE" in spool.run("status", "--json", code=3).stdout
    tomorrow.run("work", "--drain")
    assert sorted(map(int, (spool.folder / "ran").read_text().split())) == short
    soundness.check(set_back(tomorrow))


def set_back(spool: Spool) -> Spool:
    """The file with the version of today, so that today's checks open it: the step only adds."""
    connection = sqlite3.connect(spool.place.path, isolation_level=None)
    connection.execute(f"PRAGMA user_version = {limits.SCHEMA_VERSION}")
    connection.close()
    return spool
