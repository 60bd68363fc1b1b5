"""doctor: ready or not, with what was found and what to do about it; it looks, and mends nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from spoolctl.run import checkup
from spoolctl.store import claim, control, invariants, workers
from spoolctl.store.database import open_queue
from spoolctl.store.settle import Outcome, settle
from spoolctl.store.submit import Submission, submit
from spoolctl.store.workers import Worker
from tests.conftest import Spool, sql

PLACE = ["sqlite", "filesystem", "space", "owner"]
SHALLOW = [*PLACE, "queue", "writing", "locks", "wal", "workers"]
NO_QUEUE = {**dict.fromkeys(PLACE, "ok"), "queue": "failed"}
DEEP = [*SHALLOW, "integrity", "rules", "survivors"]
LATER = 4_000_000_000_000  # ms since 1970
GATE = "until [ -e go ]; do sleep 0.02; done"  # a command that runs until the test opens the gate
needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes through /proc")


def examine(spool: Spool, *words: str, code: int = 0) -> dict[str, dict[str, str]]:
    """Every check by its name; the answer's shape holds, and its parts agree."""
    answer = spool.json("doctor", *words, code=code)
    assert set(answer) == {"ready", "checks", "warnings"}
    for check in answer["checks"]:
        assert set(check) == {"check", "result", "found", "remedy"}
        assert check["result"] in ("ok", "look", "failed")
        assert check["found"]
        assert check["remedy"] or check["result"] == "ok"
    failed = [check for check in answer["checks"] if check["result"] == "failed"]
    assert (answer["ready"], code) == ((False, 3) if failed else (True, 0))
    checks = {check["check"]: check for check in answer["checks"]}
    assert len(checks) == len(answer["checks"])
    return checks


def results(checks: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: check["result"] for name, check in checks.items()}


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything under `folder`, with its mode, its time and its bytes; folders have no time here:
    SQLite makes its -shm in one and takes it away again."""
    found = {}
    for path in sorted(folder.rglob("*")):
        is_file = path.is_file()
        state = path.lstat()
        content = path.read_bytes() if is_file else b""
        found[str(path.relative_to(folder))] = (state.st_mode, state.st_mtime_ns if is_file else 0, content)
    return found


def lived(spool: Spool) -> None:
    """A queue with a job in every state but `running`, made by the store itself, and nobody at work."""
    os.mkdir(os.path.dirname(spool.place.path), 0o700)
    database = open_queue(spool.place, create_missing=True)
    with database.write() as tx:
        jobs = [submit(tx, 0, Submission([b"true"])).job for _ in range(4)]
        tx.execute("UPDATE jobs SET max_retries = 0 WHERE id = ?", (jobs[1],))
        me = Worker()
        workers.enter(tx, me)
        claim.claim(tx, 0, (me.id, "me"), (), 3)
        for job, kind in zip(jobs, ("succeeded", "failed", "failed")):
            settle(tx, 1, job, 1, me.id, Outcome(kind))
        control.cancel(tx, 1, jobs[3], False)
        wanted = Submission([b"true"])
        wanted.at = LATER
        submit(tx, 1, wanted)
        tx.execute("UPDATE jobs SET due_at = ? WHERE state = 'failed'", (LATER,))
        workers.leave(tx, me.id)
    database.close()


# Ready


def test_a_sound_queue_is_ready_and_every_check_is_ok(any_form: Spool) -> None:
    spool = any_form
    lived(spool)
    assert results(examine(spool)) == dict.fromkeys(SHALLOW, "ok")
    deep = examine(spool, "--deep")
    assert results(deep) == dict.fromkeys(DEEP, "ok")
    assert spool.place.path in deep["queue"]["found"]
    assert deep["sqlite"]["found"].startswith(sqlite3.sqlite_version)
    assert deep["rules"]["found"].startswith(f"{len(invariants.RULES)} rules")


def test_the_text_has_a_line_for_each_check(any_form: Spool) -> None:
    spool = any_form
    lived(spool)
    head, *lines = spool.text("doctor", "--deep").splitlines()
    assert head.split() == ["result", "check", "found"]
    assert [line.split()[:2] for line in lines] == [["ok", name] for name in DEEP]


def test_live_workers_are_counted(spool: Spool) -> None:
    job = spool.add("-c", GATE)
    spool.worker()
    spool.until_state(job, "running")
    checks = examine(spool, "--deep")
    assert results(checks) == dict.fromkeys(DEEP, "ok")
    assert checks["workers"]["found"] == "1 alive of 1 on the roll"


def test_what_somebody_should_look_at_is_told_and_does_not_make_a_place_unready(any_form: Spool) -> None:
    spool = any_form
    spool.add("--queue", "lonely", "--", "true")
    checks = examine(spool)
    assert results(checks) == {**dict.fromkeys(SHALLOW, "ok"), "attention": "look"}
    assert "queue lonely" in checks["attention"]["found"]


# Not ready


def test_a_place_without_a_queue_is_ready_for_one(any_form: Spool) -> None:
    spool = any_form
    checks = examine(spool)
    assert results(checks) == {**NO_QUEUE, "queue": "look"}
    assert spool.place.path in checks["queue"]["found"]
    assert "add" in checks["queue"]["remedy"]
    last = spool.text("doctor", "--deep").splitlines()[-1]
    assert last.split()[:2] == ["look", "queue"]
    assert checks["queue"]["remedy"] in last
    assert os.listdir(spool.folder) == []


def test_a_place_where_none_can_be_made_is_not_ready(spool: Spool) -> None:
    away = examine(spool, "--db", str(spool.folder / "no" / "q.db"), code=3)["queue"]
    assert (away["result"], away["remedy"]) == ("failed", "make it first")


@pytest.mark.parametrize("what", ["text", "another program's database", "a folder"])
def test_what_is_no_queue_is_not_ready_and_is_left_alone(any_form: Spool, what: str) -> None:
    spool = any_form
    path = spool.folder / "other.db"
    if what == "text":
        path.write_bytes(b"dear diary\n" * 500)
    elif what == "a folder":
        path.mkdir()
    else:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE mine (x)")
        connection.commit()
        connection.close()
    before = tree(spool.folder)
    checks = examine(spool, "--db", str(path), "--deep", code=3)
    assert results(checks) == NO_QUEUE
    assert str(path) in checks["queue"]["found"]
    assert "--db" in checks["queue"]["remedy"]
    assert tree(spool.folder) == before


def test_a_queue_of_a_newer_spoolctl_is_not_ready(spool: Spool) -> None:
    spool.add("--", "true")
    sql(spool, "PRAGMA user_version = 999")
    checks = examine(spool, code=3)
    assert results(checks) == NO_QUEUE
    assert "999" in checks["queue"]["found"]
    assert "newer" in checks["queue"]["remedy"]


def test_a_folder_that_is_missing_is_named(spool: Spool) -> None:
    spool.add("--", "true")
    shutil.rmtree(spool.place.bell)
    checks = examine(spool)
    assert checks["writing"]["result"] == "look"
    assert spool.place.bell in checks["writing"]["found"]
    assert not os.path.exists(spool.place.bell)
    spool.add("--", "true")
    assert examine(spool)["writing"]["result"] == "ok"


def test_a_queue_that_others_can_write_is_not_ready_unless_trusted(any_form: Spool) -> None:
    any_form.add("--queue", "q", "--", "true")
    os.chmod(any_form.place.path, 0o666)
    checks = examine(any_form, code=3)
    assert checks["owner"]["result"] == "failed"
    assert "can be written by everybody" in checks["owner"]["found"]
    assert examine(any_form, "--trust")["owner"]["result"] == "look"


def test_a_disk_that_is_full_is_not_ready_and_one_that_is_nearly_full_wants_a_look(spool: Spool) -> None:
    (spool.folder / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(spool.folder / "disk")]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounts a small file system, which is not permitted here")
    try:
        queue = str(spool.folder / "disk" / "queue.db")
        spool.run("--db", queue, "add", "--", "true")
        assert examine(spool, "--db", queue)["space"]["result"] == "look"
        with open(spool.folder / "disk" / "ballast", "wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"x" * 4096)
        space = examine(spool, "--db", queue, code=3)["space"]
        assert (space["result"], space["found"], space["remedy"]) == ("failed", "the disk is full", "make room on it")
    finally:
        subprocess.run(["umount", "-l", str(spool.folder / "disk")], check=True)


def test_locks_that_do_not_keep_out_others_are_found(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof of a worker's death rests on them; a file system may only pretend to have them."""
    spool.add("--", "true")
    database = open_queue(spool.place, read_only=True)
    assert checkup._locks(database)["result"] == "ok"
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: None)
    assert checkup._locks(database)["result"] == "failed"

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "No locks available" in checkup._locks(database)["found"]
    database.close()


def test_counts_that_are_wrong_break_a_rule_that_only_deep_looks_at(any_form: Spool) -> None:
    spool = any_form
    lived(spool)
    sql(spool, "UPDATE counts SET n = n + 1 WHERE state = 'done'")
    assert results(examine(spool)) == dict.fromkeys(SHALLOW, "ok")
    checks = examine(spool, "--deep", code=3)
    assert results(checks) == {**dict.fromkeys(DEEP, "ok"), "rules": "failed"}
    assert checks["rules"]["found"] == "not true: counts equal a recount (default/done)"
    assert "report" in checks["rules"]["remedy"]
    assert "counts equal a recount" in spool.text("doctor", "--deep", code=3)
    assert sql(spool, "SELECT n FROM counts WHERE state = 'done'") == [(2,)]  # it mends nothing


def test_a_file_with_damaged_pages_is_not_ready(spool: Spool) -> None:
    """An index that lacks a row: SQLite can read the file, and finds it unsound."""
    lived(spool)
    connection = sqlite3.connect(spool.place.path)
    connection.execute("PRAGMA writable_schema = ON")
    if not connection.execute("PRAGMA writable_schema").fetchone()[0]:
        pytest.skip("this SQLite does not let its schema be edited")
    connection.execute(
        "UPDATE sqlite_master SET sql = replace(sql, 'state = ''dead''', 'state = ''done''') WHERE name = 'jobs_dead'"
    )
    connection.commit()
    connection.close()
    checks = examine(spool, "--deep", code=3)
    assert checks["integrity"]["result"] == "failed"
    assert "jobs_dead" in checks["integrity"]["found"]
    assert ".recover" in checks["integrity"]["remedy"]


# Survivors


def carrier(spool: Spool, job: int) -> subprocess.Popen[bytes]:
    """A live process that looks as if the job's first attempt had started it."""
    ((marker,),) = sql(spool, "SELECT marker FROM attempts WHERE job = ? AND number = 1", job)
    process = subprocess.Popen(["sleep", "100"], env={**spool.env, "SPOOLCTL_MARKER": marker})
    spool.processes.append(process)
    return process


@needs_proc
def test_a_process_of_an_attempt_that_did_not_succeed_is_a_survivor(any_form: Spool) -> None:
    """Protects doctor's look through all processes, and that it ends none."""
    spool = any_form
    lived(spool)
    job = 2
    process = carrier(spool, job)
    assert "survivors" not in examine(spool)
    checks = examine(spool, "--deep", code=3)
    assert results(checks) == {**dict.fromkeys(DEEP, "ok"), "survivors": "failed"}
    assert checks["survivors"]["found"] == f"process {process.pid} of job {job}"
    assert checks["survivors"]["remedy"]
    assert process.poll() is None
    process.kill()
    process.wait()
    assert examine(spool, "--deep")["survivors"]["result"] == "ok"


@needs_proc
@pytest.mark.parametrize("state", ["failed", "timed_out", "abandoned", "canceled", "succeeded", "running"])
def test_who_counts_as_a_survivor_depends_on_how_its_attempt_ended(spool: Spool, state: str) -> None:
    """Background children of a success are left alone, and what runs is no survivor."""
    lived(spool)
    process = carrier(spool, 1)
    sql(spool, "UPDATE attempts SET state = ? WHERE job = 1", state)
    sound = state in ("succeeded", "running")
    answer = spool.json("doctor", "--deep", code=None)
    (survivors,) = (check for check in answer["checks"] if check["check"] == "survivors")
    assert survivors["result"] == ("ok" if sound else "failed")
    assert (str(process.pid) in survivors["found"]) is not sound


# It looks, and mends nothing


@pytest.mark.parametrize("damage", ["none", "counts", "no bell"])
def test_doctor_changes_nothing_and_creates_nothing(any_form: Spool, damage: str) -> None:
    spool = any_form
    lived(spool)
    if damage == "counts":
        sql(spool, "UPDATE counts SET n = n + 1")
    elif damage == "no bell":
        shutil.rmtree(spool.place.bell)
    before = tree(spool.folder)
    for words in ((), ("--deep", "--json")):
        spool.run("doctor", *words, code=None)
        assert tree(spool.folder) == before, words


def test_doctor_mends_nothing_that_a_dead_worker_has_left(spool: Spool) -> None:
    job = spool.add("--", "sleep", "100")
    worker = spool.worker()
    spool.until_state(job, "running")
    worker.kill()
    worker.wait()
    tables = ("jobs", "attempts", "events", "workers", "counts")
    before = [sql(spool, f"SELECT * FROM {table}") for table in tables]
    lock = os.listdir(spool.place.workers)
    commands = spool.left_running()
    checks = examine(spool, "--deep")
    assert checks["workers"]["found"] == "0 alive of 1 on the roll"
    assert [sql(spool, f"SELECT * FROM {table}") for table in tables] == before
    assert os.listdir(spool.place.workers) == lock
    assert spool.left_running() == commands


def test_a_queue_that_another_process_is_writing_can_be_examined(spool: Spool) -> None:
    spool.add("--at", "2099-01-01", "--", "true")
    database = open_queue(spool.place)
    with database.write() as tx:
        submit(tx, 0, Submission([b"true"]))
        assert results(examine(spool, "--deep")) == dict.fromkeys(DEEP, "ok")
    database.close()


def test_the_answer_is_one_object_whose_warnings_are_empty(any_form: Spool) -> None:
    spool = any_form
    done = spool.run("doctor", "--json")
    answer = json.loads(done.stdout)
    assert done.stdout.count(b"\n") == 1
    assert (list(answer), answer["warnings"], done.stderr) == (["ready", "checks", "warnings"], [], b"")
