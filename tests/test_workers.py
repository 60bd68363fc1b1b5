"""The roll as its readers see it: who is alive, hung or dead, and what `status` warns of."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from spoolctl.store import recover
from spoolctl.store.database import open_queue
from tests.conftest import Spool

# A worker that beats ten times a second, and readers to whom a heartbeat is stale after half a second.
QUICK = {"SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "0.1", "SPOOLCTL_TEST_REAP_THRESHOLD": "0.5"}
PATIENT = {"SPOOLCTL_TEST_REAP_THRESHOLD": "3600"}  # to whom no heartbeat of a busy machine is stale
KEYS = {"worker", "state", "pid", "host", "queues", "jobs", "running", "started_at", "heartbeat_age"}
GATE = "until [ -e go ]; do sleep 0.02; done"  # a command that runs until the test opens the gate
needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes through /proc")


def roll(spool: Spool, **env: str) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = spool.json("workers", **{**PATIENT, **env})["workers"]
    return workers


def line(spool: Spool, name: str, **env: str) -> dict[str, Any]:
    """The worker of that name; empty where it is not on the roll."""
    return next((worker for worker in roll(spool, **env) if worker["worker"] == name), {})


def started(spool: Spool, name: str, *words: str) -> subprocess.Popen[bytes]:
    """A quick worker that is on the roll."""
    worker = spool.worker("--worker-id", name, *words, **QUICK)
    spool.until(lambda: line(spool, name), f"{name}'s line on the roll")
    return worker


def until_hung(spool: Spool, worker: subprocess.Popen[bytes], name: str) -> dict[str, Any]:
    """Stop the worker; its line, once its heartbeat is stale."""
    worker.send_signal(signal.SIGSTOP)

    def hung() -> dict[str, Any] | None:
        found = line(spool, name, **QUICK)
        return found if found["state"] == "hung" else None

    found: dict[str, Any] = spool.until(hung, "a hung worker")
    return found


def warnings(spool: Spool, **env: str) -> list[str]:
    said: list[str] = spool.json("status", **{**PATIENT, **env})["warnings"]
    return said


def unserved(spool: Spool, **env: str) -> list[str]:
    """The queues of which `status` says that nobody serves them."""
    begin = "no live worker serves queue "
    return [said[len(begin) :].partition(",")[0] for said in warnings(spool, **env) if said.startswith(begin)]


def write(spool: Spool, statement: str, *values: Any) -> None:
    database = open_queue(spool.place)
    with database.write() as tx:
        tx.execute(statement, values)
    database.close()


# workers


def test_a_live_worker_is_shown_with_all_that_it_is(any_form: Spool) -> None:
    spool = any_form
    job = spool.add("--queue", "b", "-c", GATE)
    before = time.time()
    worker = started(spool, "me", "--queue", "b", "--queue", "a", "--jobs", "3")
    spool.until_state(job, "running")
    answer = spool.json("workers", **PATIENT)
    assert set(answer) == {"workers", "warnings"}
    (found,) = answer["workers"]
    assert set(found) == KEYS
    assert (found["worker"], found["state"], found["pid"]) == ("me", "alive", worker.pid)
    assert (found["host"], sorted(found["queues"]), found["jobs"]) == (os.uname().nodename, ["a", "b"], 3)
    assert found["running"] == [job]
    since = datetime.fromisoformat(found["started_at"].replace("Z", "+00:00")).timestamp()
    assert before - 0.001 <= since <= time.time()
    assert 0 <= found["heartbeat_age"] <= time.time() - before


def test_a_worker_that_serves_every_queue_names_none(spool: Spool) -> None:
    spool.add("--", "true")
    started(spool, "all")
    found = line(spool, "all")
    assert (found["queues"], found["jobs"], found["running"]) == ([], 1, [])


def test_the_text_has_a_line_for_each_worker(spool: Spool) -> None:
    job = spool.add("-c", GATE)
    busy = started(spool, "busy", "--queue", "default", "--jobs", "2")
    spool.until_state(job, "running")
    idle = started(spool, "idle")
    head, first, second = spool.text("workers", **PATIENT).splitlines()
    assert head.split()[:6] == ["worker", "state", "pid", "host", "queues", "busy"]
    host = os.uname().nodename
    assert first.split()[:8] == ["busy", "alive", str(busy.pid), host, "default", "1", "of", "2"]
    assert first.split()[-1] == str(job)
    assert second.split()[:9] == ["idle", "alive", str(idle.pid), host, "(every", "one)", "0", "of", "1"]
    assert second.split()[-1] == "-"


def test_where_nobody_works_the_roll_is_empty(spool: Spool) -> None:
    spool.add("--at", "2099-01-01", "--", "true")
    assert spool.json("workers") == {"workers": [], "warnings": []}
    assert spool.text("workers") == ""


@needs_proc
def test_a_stopped_worker_is_hung_keeps_its_job_and_is_alive_again_when_it_goes_on(spool: Spool) -> None:
    """Protects the lock as proof of life: by the heartbeat alone it would be dead."""
    job = spool.add("-c", GATE)
    worker = started(spool, "hung")
    spool.until_state(job, "running")
    found = until_hung(spool, worker, "hung")
    assert (found["pid"], found["running"]) == (worker.pid, [job])
    assert found["heartbeat_age"] >= 0.5
    assert spool.text("workers", **QUICK).splitlines()[1].split()[:2] == ["hung", "hung"]
    assert line(spool, "hung")["state"] == "alive"  # to a reader whose threshold it has not passed
    worker.send_signal(signal.SIGCONT)
    spool.until(lambda: line(spool, "hung", **QUICK)["state"] == "alive", "its new heartbeat")


def test_a_killed_worker_is_dead_at_once_though_nobody_has_reaped_it(spool: Spool) -> None:
    """Protects the lock as proof of death: its heartbeat is as fresh as a living worker's. And a
    reader only looks: the job, the line and the lock file stay for the next worker."""
    job = spool.add("-c", GATE)
    worker = started(spool, "killed")
    spool.until_state(job, "running")
    worker.kill()
    worker.wait()
    for _ in range(2):
        found = line(spool, "killed")
        assert (found["state"], found["pid"], found["running"]) == ("dead", worker.pid, [job])
    assert len(os.listdir(spool.place.workers)) == 1
    assert spool.state(job) == "running"
    assert spool.text("workers", **PATIENT).splitlines()[1].split()[:2] == ["killed", "dead"]


def test_alive_and_dead_stand_side_by_side_and_status_counts_them(spool: Spool) -> None:
    spool.add("--queue", "other", "--", "true")
    dead = started(spool, "dead", "--queue", "none")
    dead.kill()
    dead.wait()
    assert spool.json("status", **PATIENT)["workers"] == {"alive": 0, "hung": 0, "dead": 1}
    alive = started(spool, "alive", "--queue", "none")
    counts = spool.json("status", **PATIENT)["workers"]
    assert set(counts) == {"alive", "hung", "dead"}
    assert (counts["alive"], counts["hung"]) == (1, 0)
    spool.until(lambda: [worker["pid"] for worker in roll(spool)] == [alive.pid], "the end of the dead one's line")
    assert spool.json("status", **PATIENT)["workers"] == {"alive": 1, "hung": 0, "dead": 0}


def test_a_worker_that_has_left_is_off_the_roll_and_its_lock_file_is_gone(spool: Spool) -> None:
    spool.add("--", "true")
    staying, leaving = started(spool, "staying"), started(spool, "leaving")
    assert len(os.listdir(spool.place.workers)) == 2
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait() == 0
    assert [worker["worker"] for worker in roll(spool)] == ["staying"]
    assert len(os.listdir(spool.place.workers)) == 1
    staying.send_signal(signal.SIGTERM)
    assert staying.wait() == 0
    assert (roll(spool), os.listdir(spool.place.workers)) == ([], [])


# What status warns of


@needs_proc
def test_status_names_a_hung_worker_with_its_pid(spool: Spool) -> None:
    spool.add("--at", "2099-01-01", "--", "true")
    worker = started(spool, "stuck-one")
    assert warnings(spool) == []
    until_hung(spool, worker, "stuck-one")
    (said,) = warnings(spool, **QUICK)
    assert said.startswith(f"worker stuck-one (process {worker.pid} on ")
    assert spool.json("status", **QUICK)["workers"] == {"alive": 0, "hung": 1, "dead": 0}
    answer = spool.run("status", **QUICK)
    assert f"warning: {said}".encode() in answer.stderr
    assert b"stuck-one" not in answer.stdout
    assert said in spool.json("workers", **QUICK)["warnings"]


def test_status_names_each_queue_with_due_jobs_that_no_live_worker_serves(spool: Spool) -> None:
    spool.add("--queue", "b", "--", "true")
    spool.add("--queue", "a", "--", "true")
    assert unserved(spool) == ["a", "b"]
    started(spool, "elsewhere", "--queue", "c")
    assert unserved(spool) == ["a", "b"]
    assert all("spoolctl work --queue " in said for said in warnings(spool))


def test_status_does_not_name_a_queue_that_a_live_worker_serves(spool: Spool) -> None:
    """Its one slot is busy: the job that waits for it is due, and served all the same."""
    busy = spool.add("--queue", "a", "-c", GATE)
    started(spool, "one", "--queue", "a")
    spool.until_state(busy, "running")
    spool.add("--queue", "a", "--", "true")
    spool.add("--queue", "b", "--", "true")
    assert unserved(spool) == ["b"]


def test_status_names_no_queue_where_a_live_worker_serves_every_one(spool: Spool) -> None:
    busy = spool.add("--priority", "1", "-c", GATE)
    started(spool, "all")
    spool.until_state(busy, "running")
    for queue in ("a", "b"):
        spool.add("--queue", queue, "--", "true")
    assert warnings(spool) == []


@pytest.mark.parametrize("served", ["--queue", "every"])
@needs_proc
def test_a_dead_or_hung_worker_serves_nobody(spool: Spool, served: str) -> None:
    busy = spool.add("--priority", "1", "-c", GATE)
    worker = started(spool, "gone", *(("--queue", "default") if served == "--queue" else ()))
    spool.until_state(busy, "running")
    spool.add("--", "true")
    assert warnings(spool) == []
    until_hung(spool, worker, "gone")
    assert unserved(spool, **QUICK) == ["default"]
    worker.kill()
    worker.wait()
    assert unserved(spool) == ["default"]
    assert len(warnings(spool)) == 1  # a dead worker is nothing to look at: the next one cleans up


def test_status_does_not_name_a_paused_queue(spool: Spool) -> None:
    for queue in ("paused", "open"):
        spool.add("--queue", queue, "--", "true")
    write(spool, "INSERT INTO queues (name, paused) VALUES ('paused', 1)")
    assert unserved(spool) == ["open"]
    write(spool, "UPDATE jobs SET ready = 0 WHERE queue = 'paused'")  # fallen due, and nobody was there to see it
    assert unserved(spool) == ["open"]


def test_status_does_not_name_a_queue_whose_jobs_are_only_delayed(spool: Spool) -> None:
    job = spool.add("--queue", "later", "--after", "1h", "--", "true")
    assert warnings(spool) == []
    write(spool, "UPDATE jobs SET due_at = due_at - 3600000 WHERE id = ?", job)  # an hour has passed
    assert unserved(spool) == ["later"]


def test_status_does_not_name_a_queue_in_which_everything_is_settled(spool: Spool) -> None:
    spool.add("--", "true")
    spool.json("work", "--drain")
    assert warnings(spool) == []


def test_status_names_an_attempt_that_cannot_be_ended_and_says_why(spool: Spool) -> None:
    job = spool.add("-c", GATE)
    started(spool, "me")
    spool.until_state(job, "running")
    why = "process 4711 may not be signalled by this user"
    database = open_queue(spool.place)
    with database.write() as tx:
        recover.note_stuck(tx, job, 1, why)
    assert warnings(spool) == [f"job {job} cannot be taken back: {why}: end that process"]
    with database.write() as tx:
        recover.note_stuck(tx, job, 1, None)
    assert warnings(spool) == []
    with database.write() as tx:
        recover.note_stuck(tx, job, 1, why)
        recover.note_stuck(tx, job, 2, "no such attempt")
    Path(spool.folder, "go").touch()
    spool.until_state(job, "done")
    assert warnings(spool) == []
    with database.write() as tx:
        recover.note_stuck(tx, job, 1, "too late: it has ended")
        assert tx.execute("SELECT stuck FROM attempts").fetchall() == [(None,)]
    database.close()
