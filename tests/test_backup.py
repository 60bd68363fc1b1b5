"""backup: a consistent copy while workers run, and the way back that docs/backup.md tells."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spoolctl.errors import Fail
from spoolctl.store import backup, read, workers
from spoolctl.store.database import open_queue
from spoolctl.store.place import Place
from tests.conftest import FAST, ROOT, Spool
from tests.crash import soundness

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def copy(any_form: Spool) -> Iterator[Spool]:
    """Where the copies of `any_form` go, with the tool pointed to `copy.db` in it."""
    copy = Spool(any_form.folder / "safe")
    copy.folder.mkdir()
    copy.command, copy.env = any_form.command, {**any_form.env, "SPOOLCTL_DB": str(copy.folder / "copy.db")}
    yield copy
    copy.close()


def sound(path: Path) -> None:
    spool = Spool(path.parent)
    soundness.check_at(Place(str(path)), spool.folder)


def test_copies_made_while_workers_run_are_sound_and_whole(any_form: Spool) -> None:
    jobs = [any_form.add("-c", "echo out of $SPOOLCTL_JOB_ID; sleep 0.01") for _ in range(40)]
    worker = any_form.worker("--drain", "--jobs", "2", **FAST)
    copies: list[Path] = []
    while worker.poll() is None or not copies:
        copies.append(any_form.folder / f"copy-{len(copies)}.db")
        any_form.run("backup", str(copies[-1]), "--with-output")
    assert worker.wait() == 0
    for copy in copies:
        sound(copy)
        whole(copy, len(jobs))


def whole(copy: Path, jobs: int) -> None:
    """No worker in it, no job lost, nothing done without its output."""
    database = open_queue(Place(str(copy)), read_only=True)
    with database.read() as tx:
        assert workers.roll(tx) == []
        counts = read.counts(tx)["default"]
        assert (counts["running"], sum(counts.values())) == (0, jobs)
        for job in read.find(tx, jobs, states=("done",)):
            [attempt] = read.attempts(tx, database, job)
            assert Path(attempt["stdout"]["path"]).read_text() == f"out of {job}\n"
    database.close()


def test_what_runs_waits_again_in_the_copy_and_goes_on_in_the_queue(any_form: Spool, copy: Spool) -> None:
    """Protects `_put_back`: the copy would else wait for a worker that will never be seen again."""
    job = any_form.add("-c", "echo $SPOOLCTL_ATTEMPT >>ran; until [ -e go ]; do sleep 0.02; done")
    worker = any_form.worker("--drain")
    any_form.until_state(job, "running")
    any_form.until(lambda: (any_form.folder / "ran").exists(), "it runs")
    told = any_form.json("backup", copy.env["SPOOLCTL_DB"])
    assert (told["put_back"], told["output_files"]) == (1, None)
    assert (copy.job(job)["state"], copy.events(job)) == ("queued", ["added", "claimed", "released"])
    assert copy.job(job)["crashes"] == copy.job(job)["failures"] == 0
    (any_form.folder / "go").touch()
    assert worker.wait(60) == 0
    assert any_form.job(job)["state"] == "done"
    (copy.folder / "go").touch()
    copy.run("work", "--drain")
    assert (copy.folder / "ran").read_text() == "2\n"
    sound(copy.folder / "copy.db")


def test_the_way_back_is_as_the_documentation_tells(any_form: Spool, copy: Spool) -> None:
    done = any_form.add("-c", "echo kept")
    any_form.run("work", "--drain")
    waiting = any_form.add("-c", "echo later")
    any_form.run("backup", copy.env["SPOOLCTL_DB"], "--with-output")
    any_form.run("cancel", str(waiting))
    any_form.add("true")
    page = (ROOT / "docs" / "backup.md").read_text()
    commands = [line.strip() for line in page.splitlines() if line.startswith(("    mv", "    mkdir", "    cp"))]
    assert len(commands) == 4
    script = "\n".join(commands).replace("/mnt/safe/queue.db", str(copy.folder / "copy.db"))
    subprocess.run(["sh", "-ec", script], cwd=any_form.folder, check=True)
    assert any_form.json("doctor", "--deep")["ready"] is True
    assert any_form.text("output", str(done)) == "kept\n"
    any_form.run("work", "--drain")
    assert any_form.text("output", str(waiting)) == "later\n"
    assert any_form.add("true") == 3
    soundness.check(any_form)


def test_the_copy_is_private_and_links_are_not_followed(any_form: Spool) -> None:
    job = any_form.add("-c", "echo mine")
    any_form.run("work", "--drain")
    output = Path(any_form.attempts(job)[0]["stdout"]["path"])
    (any_form.folder / "secret").write_text("not output")
    output.with_name("9.1.stdout").symlink_to(any_form.folder / "secret")
    os.mkfifo(output.with_name("8.1.stdout"))
    before = os.umask(0)
    try:
        told = any_form.json("backup", "copy.db", "--with-output")
    finally:
        os.umask(before)
    assert told["output_files"] == 2, "stdout and stderr of one attempt"
    for path in [any_form.folder / "copy.db", *(any_form.folder / "copy.db.d").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("there", ["copy.db", "copy.db.d", "copy.db-wal", "copy.db-shm", "copy.db-journal"])
def test_nothing_is_overwritten(any_form: Spool, there: str) -> None:
    any_form.add("true")
    (any_form.folder / there).mkdir()
    refused = any_form.json("backup", "copy.db", "--with-output", code=5)["error"]
    assert refused["code"] == "CONFLICT"
    assert list((any_form.folder / there).iterdir()) == []


def test_without_a_queue_or_a_folder_there_is_nothing_to_copy(any_form: Spool) -> None:
    assert any_form.json("backup", "copy.db", code=1)["error"]["code"] == "NOT_FOUND"
    any_form.add("true")
    assert "its folder does not exist" in any_form.run("backup", "no/copy.db", code=1).stderr.decode()
    assert [path.name for path in any_form.folder.iterdir()] == [".spoolctl"]


def test_a_copy_that_does_not_fit_leaves_nothing_behind(any_form: Spool) -> None:
    for _ in range(5):
        any_form.add("--note", "x" * 4000, "--", "true")
    limited = subprocess.run(
        [*any_form.command, "backup", "--json", "copy.db"],
        cwd=any_form.folder,
        env=any_form.env,
        capture_output=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)),
    )
    assert limited.returncode == 3, limited
    assert b"Traceback" not in limited.stderr
    assert [path.name for path in any_form.folder.iterdir()] == [".spoolctl"]


def test_a_copy_whose_output_does_not_fit_leaves_nothing_behind(any_form: Spool) -> None:
    """Else a copy that looks whole would lack a part of its output."""
    any_form.add("-c", "head -c 3000000 /dev/zero")
    any_form.run("work", "--drain")
    (any_form.folder / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(any_form.folder / "disk")]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounts a small file system, which is not permitted here")
    try:
        refused = any_form.json("backup", "disk/copy.db", "--with-output", code=3)["error"]
        assert refused["code"] == "NO_SPACE"
        assert list((any_form.folder / "disk").iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(any_form.folder / "disk")], check=True)


def test_output_that_cannot_be_read_is_not_taken_for_none(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.add("-c", "echo out")
    spool.run("work", "--drain")
    database = open_queue(spool.place, read_only=True)

    real = os.scandir

    def closed(path: str) -> Iterator[os.DirEntry[str]]:
        if path == spool.place.outputs:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(Fail) as refused:
        backup.make_copy(database, str(spool.folder / "copy.db"), 1, True)
    monkeypatch.undo()
    assert refused.value.code == "NO_ACCESS"
    assert sorted(path.name for path in spool.folder.iterdir()) == [".spoolctl"]
    database.close()


def test_output_that_grows_faster_than_it_is_copied_is_copied_as_it_was(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the look at the size: the copy would else follow a runaway until the disk is full."""
    job = spool.add("-c", "echo 1234567")
    spool.run("work", "--drain")
    path = spool.attempts(job)[0]["stdout"]["path"]
    database, real = open_queue(spool.place, read_only=True), os.read

    def growing(file: int, count: int) -> bytes:
        with open(path, "ab") as more:
            more.write(b"x" * 8)
        assert os.path.getsize(path) < 10_000
        return real(file, count)

    monkeypatch.setattr(os, "read", growing)
    copied = backup.make_copy(database, str(spool.folder / "copy.db"), 1, True)
    monkeypatch.undo()
    assert copied.size == 8
    database.close()


def test_one_that_is_killed_leaves_no_copy(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its name only when it is whole and on disk."""
    spool.add("true")
    database = open_queue(spool.place, read_only=True)
    path = str(spool.folder / "copy.db")

    def die(source: str, target: str) -> None:
        assert not os.path.exists(path)
        sound(Path(source))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        backup.make_copy(database, path, 1, False)
    database.close()
    assert not os.path.exists(path)


def test_a_large_queue_is_copied_while_somebody_writes(spool: Spool) -> None:
    """In one step: in several, each commit of another process would start the copy anew, for ever."""
    lines = b'{"argv": ["true"], "note": "' + b"x" * 500 + b'"}\n'
    spool.run("add", "--batch", "-", stdin=lines * 5000)
    writer = subprocess.Popen(
        ["sh", "-c", 'while "$@" >/dev/null; do :; done', "sh", *spool.command, "add", "--", "true"],
        cwd=spool.folder,
        env=spool.env,
    )
    try:
        spool.run("backup", "copy.db")
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    sound(spool.folder / "copy.db")


def test_refusals_are_raised_where_they_are_decided(tmp_path: Path) -> None:
    (tmp_path / ".spoolctl").mkdir()
    database = open_queue(Place(str(tmp_path / ".spoolctl" / "queue.db")), create_missing=True)
    shutil.copy(database.place.path, tmp_path / "there")
    with pytest.raises(Fail) as refused:
        backup.make_copy(database, str(tmp_path / "there"), 1, False)
    assert refused.value.code == "CONFLICT"
    database.close()
