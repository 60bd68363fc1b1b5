"""Other people: who may look, what somebody else has planted, what root leaves behind, and what a hostile
line does to a terminal."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spoolctl.store.database import open_queue
from tests.conftest import DEADLINE, Spool
from tests.faults.test_file import ask, both

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users, which only the superuser may")
SOMEBODY, PLANTER = 65533, 65534

# Everything is loaded before the superuser becomes somebody else, who may not be able to read this checkout.
AS_SOMEBODY = f"""
import os, sys, difflib, json, select
import spoolctl.cli, spoolctl.store.creation, spoolctl.store.explain
from spoolctl.surface.help import all_verbs
all_verbs()
os.setgroups([]), os.setgid({SOMEBODY}), os.setuid({SOMEBODY})
raise SystemExit(spoolctl.cli.main())
"""


def as_somebody(spool: Spool) -> Spool:
    """The same folder, used by a normal user."""
    other = Spool(spool.folder)
    other.env = dict(spool.env)
    other.command = [sys.executable, "-c", AS_SOMEBODY]
    return other


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def theirs(open_folder: Path) -> Iterator[Spool]:
    """A queue of a normal user with one job in it; `run` is the superuser's."""
    spool = Spool(open_folder)
    os.chown(open_folder, SOMEBODY, SOMEBODY)
    as_somebody(spool).run("add", "--", "echo", "hi")
    yield spool
    spool.close()


def everything(spool: Spool) -> list[Path]:
    folder = spool.folder / ".spoolctl"
    return [folder, *folder.rglob("*")]


# Privacy


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_all_that_is_made_is_private_whatever_the_umask(spool: Spool, umask: int) -> None:
    """Also what only lives as long as a worker: -wal, -shm, its lock file."""
    spool.command = ["sh", "-c", f'umask {umask:03o}; exec "$@"', "sh", *spool.command]
    spool.add("-c", "echo out; echo err >&2; sleep 100")
    spool.worker()
    spool.until_state(1, "running")
    spool.until(lambda: any(path.suffix == ".stderr" and path.stat().st_size for path in everything(spool)), "output")
    modes = {path: path.lstat().st_mode & 0o7777 for path in everything(spool)}
    names = {path.name for path in modes}
    assert {"queue.db", "queue.db-wal", "queue.db-shm", "bell", "1.1.stdout", "1.1.stderr"} <= names
    assert len(os.listdir(spool.place.workers)) == 1
    assert [path for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)] == []


# Planted


def plant(path: Path, what: str, victim: Path) -> None:
    """Put something in the way; a link leads to `victim`."""
    if what == "a symbolic link":
        path.symlink_to(victim)
    elif what == "a dangling link":
        path.symlink_to(victim.with_name("nothing"))
    elif what == "a hard link":
        os.link(victim, path)
    elif what == "a fifo":
        os.mkfifo(path)
    elif what == "a directory":
        path.mkdir()
    elif what == "a full directory":
        (path / "x").mkdir(parents=True)
    elif what == "a file":
        path.write_text("debris")
    else:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
        os.chdir(here)


def outputs(spool: Spool) -> Path:
    """The folder of the first jobs' output."""
    database = open_queue(spool.place, read_only=True)
    database.close()
    folder = Path(spool.place.output(database.queue_id, 1, 1)).parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def victim(spool: Spool) -> Path:
    path = spool.folder / "victim"
    path.write_text("precious\n")
    os.utime(path, (1, 1))
    return path


def untouched(path: Path) -> bool:
    found = path.stat()
    return path.read_text() == "precious\n" and found.st_mtime == 1 and not path.with_name("nothing").exists()


PLANTED = ["a symbolic link", "a dangling link", "a hard link", "a fifo", "a directory", "a full directory"]
PLANTED += ["a file", "a socket"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_at_the_path_of_an_output_is_not_written_and_stops_nobody(
    spool: Spool, what: str, stream: str
) -> None:
    """An output belongs to a new attempt, so whatever has its name is not the queue's."""
    job = spool.add("-c", "echo out; echo err >&2")
    other = spool.add("--", "echo", "other")
    aim = victim(spool)
    plant(outputs(spool) / f"1.1.{stream}", what, aim)
    worker = spool.worker("--drain")
    assert worker.wait(30) == 0
    assert untouched(aim)
    assert [spool.state(number) for number in (job, other)] == ["done"] * 2
    said = spool.run("output", str(job))
    assert (said.stdout, said.stderr) == (b"out\n", b"err\n")
    assert spool.text("output", str(other)) == "other\n"


@pytest.mark.parametrize("what", ["a symbolic link", "a dangling link", "a fifo", "a directory", "a socket"])
def test_what_took_the_place_of_an_output_is_not_shown_as_the_output(spool: Spool, what: str) -> None:
    """Nor waited for: a fifo has no end."""
    spool.add("--", "echo", "hi")
    spool.run("work", "--drain")
    path = outputs(spool) / "1.1.stdout"
    path.unlink()
    plant(path, what, victim(spool))
    for words in (["output", "1"], ["output", "--json", "1"], ["show", "1"], ["show", "--json", "1"]):
        done = subprocess.run(
            [*spool.command, *words], cwd=spool.folder, env=spool.env, capture_output=True, timeout=10, check=False
        )
        assert done.returncode in (0, 3), done
        assert b"Traceback" not in done.stderr, done
        assert b"precious" not in done.stdout, done
    assert done.returncode == 0, "show answers, whatever became of the output"


@pytest.mark.parametrize("what", ["a fifo", "a file", "a dangling link"])
@pytest.mark.parametrize("where", ["output", "output/ID", "workers", "bell", "bell/bell"])
def test_what_is_planted_for_a_folder_is_no_trap(spool: Spool, where: str, what: str) -> None:
    """The worker works, or says what is in the way; it can be stopped, and works when the way is clear."""
    job = spool.add("--", "echo", "hi")
    path = Path(spool.place.folder, where.replace("ID", outputs(spool).parent.name))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    aim = victim(spool)
    plant(path, what, aim)
    worker = spool.worker()
    log = spool.folder / "worker-0.log"
    spool.until(lambda: spool.state(job) == "done" or str(path) in log.read_text(), "the job or a complaint", 20)
    if worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) in (0, 3, -signal.SIGTERM)  # the last: it was leaving by itself
    assert untouched(aim)
    if spool.state(job) != "done":
        failed = [check for check in spool.json("doctor", code=3)["checks"] if check["result"] == "failed"]
        assert str(path) in failed[0]["found"], failed
    path.unlink(missing_ok=True)
    path.mkdir(mode=0o700) if where != "bell/bell" else None
    spool.run("work", "--drain")
    assert spool.state(job) == "done"


@needs_root
@pytest.mark.parametrize("where", ["output", "output/ID", "workers", "bell"])
def test_a_link_of_another_user_in_place_of_a_folder_is_not_followed(spool: Spool, where: str) -> None:
    """One's own link may lead to a larger disk; somebody else's leads where he wants."""
    spool.add("--", "echo", "hi")
    path = Path(spool.place.folder, where.replace("ID", outputs(spool).parent.name))
    shutil.rmtree(path)
    elsewhere = spool.folder / "elsewhere"
    elsewhere.mkdir()
    path.symlink_to(elsewhere)
    os.lchown(path, PLANTER, PLANTER)
    spool.worker("--once").wait(30)
    spool.run("add", "true", code=None)
    assert list(elsewhere.iterdir()) == []
    assert elsewhere.stat().st_mtime == elsewhere.stat().st_ctime, "nothing was in it meanwhile"


@needs_root
@pytest.mark.parametrize("what", ["output", "workers", "bell"])
def test_a_worker_does_not_serve_a_queue_with_a_folder_that_others_can_write(spool: Spool, what: str) -> None:
    spool.add("true")
    for folder in (os.path.dirname(spool.place.path), spool.place.folder):
        os.chmod(folder, 0o755)  # else nobody else could come near
    Path(spool.place.folder, what).chmod(0o777)
    assert b"written by everybody" in spool.run("work", "--drain", code=3).stderr
    assert spool.state(1) == "queued"


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_folder_that_everybody_can_write_is_served_with_the_sticky_bit_only(open_folder: Path, mode: int) -> None:
    """Without it everybody can put another queue in the place of this one."""
    spool = as_somebody(Spool(open_folder))
    open_folder.chmod(mode)
    queue = str(open_folder / "q.db")
    spool.run("--db", queue, "add", "--", "true")
    done = spool.run("--db", queue, "work", "--drain", code=0 if mode & 0o1000 else 3)
    assert (b"written by everybody" in done.stderr) == (mode == 0o777)


@needs_root
@pytest.mark.parametrize("ending", ["", "-wal", ".d", ".new"])
def test_a_file_of_another_user_beside_a_queue_to_be_is_named_and_no_queue_is_made(
    open_folder: Path, ending: str
) -> None:
    """Where everybody may make files, somebody can be there first: that may be in the way, but not deceive."""
    open_folder.chmod(0o1777)
    queue = open_folder / "q.db"
    planted = Path(f"{queue}{ending}")
    if ending == ".d":
        planted.mkdir(mode=0o777)
    else:
        planted.write_bytes(b"planted")
    os.chown(planted, PLANTER, PLANTER)
    planted.chmod(0o777)
    spool = as_somebody(Spool(open_folder))
    spool.run("--db", str(queue), "add", "--", "true", code=None)
    done = spool.run("--db", str(queue), "work", "--drain", code=None)
    assert done.returncode in (1, 3), done
    assert str(queue) in done.stderr.decode(), done
    if ending != ".d":
        assert planted.read_bytes() == b"planted"


@needs_root
def test_a_link_of_another_user_in_place_of_the_spool_folder_is_not_followed(open_folder: Path) -> None:
    open_folder.chmod(0o1777)
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, SOMEBODY, SOMEBODY)
    link = open_folder / "q.db.d"
    link.symlink_to(home)
    os.lchown(link, PLANTER, PLANTER)
    spool = as_somebody(Spool(open_folder))
    for words in (["add", "--", "true"], ["work", "--drain"]):
        spool.run("--db", str(open_folder / "q.db"), *words, code=3)
    assert list(home.iterdir()) == []


# Root was here


@needs_root
def test_a_queue_of_root_is_closed_to_others_who_are_told_so(open_folder: Path) -> None:
    root = Spool(open_folder)
    root.run("add", "--", "echo", "hi")
    root.run("work", "--drain")
    before = {path: path.lstat().st_mtime_ns for path in everything(root)}
    user = as_somebody(root)
    verbs = (["status"], ["list"], ["show", "1"], ["output", "1"], ["workers"], ["add", "true"], ["cancel", "1"])
    for words in (*verbs, ["retry", "1"], ["work", "--drain"]):
        error = user.json(*words, code=3)["error"]
        assert error["code"] == "NO_ACCESS"
        assert root.place.path in error["message"]
        assert "another user" in error["hint"]
    assert "another user" in user.text("doctor", code=3)
    assert {path: path.lstat().st_mtime_ns for path in everything(root)} == before


# In a queue that root may write without owning it, and dies in the middle of.
KILLED = """
import os, signal, sys
from spoolctl.store.database import open_queue
from spoolctl.store.place import Place
from spoolctl.store.submit import Submission, submit
database = open_queue(Place(sys.argv[1]))
with database.write() as tx:
    submit(tx, 1, Submission([b"true"]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_root
def test_what_root_submitted_and_left_unfinished_hinders_nobody(theirs: Spool) -> None:
    """SQLite gives -wal and -shm the owner of the file."""
    theirs.run("add", "--", "echo", "of root")
    subprocess.run([sys.executable, "-c", KILLED, theirs.place.path], env=theirs.env, check=False)
    assert Path(theirs.place.path + "-wal").stat().st_size > 0
    assert {path.lstat().st_uid for path in everything(theirs)} == {SOMEBODY}
    user = as_somebody(theirs)
    user.run("work", "--drain")
    assert user.json("status")["counts"]["done"] == 3


@needs_root
def test_a_queue_of_another_user_is_served_with_trust_only_and_stays_usable_for_him(theirs: Spool) -> None:
    """Root in a container serves the mounted folder of a user. What its worker makes there is the user's,
    or he could neither read his output nor go on."""
    assert b"--trust" in theirs.run("work", "--drain", code=3).stderr
    assert theirs.json("status")["counts"]["queued"] == 1
    theirs.run("work", "--drain", "--trust")
    user = as_somebody(theirs)
    assert user.text("output", "1") == "hi\n"
    assert not user.attempts(1)[0]["stdout"]["missing"]
    job = user.add("--", "echo", "more")
    worker = user.worker("--drain")
    assert worker.wait(30) == 0
    assert user.text("output", str(job)) == "more\n"
    assert {path.lstat().st_uid for path in everything(theirs)} == {SOMEBODY}


@needs_root
def test_an_output_that_may_not_be_read_is_not_called_missing(theirs: Spool) -> None:
    as_somebody(theirs).run("work", "--drain")
    folder = outputs(theirs)
    os.chown(folder, 0, 0)
    folder.chmod(0o700)
    user = as_somebody(theirs)
    assert b"Permission denied" in user.run("output", "1", code=3).stderr
    assert not user.attempts(1)[0]["stdout"]["missing"]


@needs_root
def test_the_bell_of_root_is_no_hindrance(theirs: Spool) -> None:
    """A bell that may not be rung costs a second, not the work."""
    os.chown(Path(theirs.place.bell, "bell"), 0, 0)
    user = as_somebody(theirs)
    user.worker()
    user.until(lambda: "serves" in (user.folder / "worker-0.log").read_text(), "the worker")
    job = user.add("--", "echo", "more")
    user.until_state(job, "done")
    user.close()


# Hostile words

RAW = b"\x1b]0;owned\x07\x1b[31m\nnew line\rback\x08\x7f\x9b2J"
TRICKS = "\u202egpj\u2066\u200b\u2028\x85\x9b31m"
HOSTILE = RAW.decode("latin-1") + TRICKS
BYTES = RAW + TRICKS.encode() + b"\xff\xfe\xc0\x80"


def harmless(said: bytes) -> bool:
    """Nothing but printable characters and the ends of lines."""
    text = said.decode("utf-8")
    return all(c == "\n" or unicodedata.category(c)[0] not in "CZ" or c == " " for c in text)


def test_no_listing_shows_a_hostile_word_raw(spool: Spool) -> None:
    flags = ["--key", HOSTILE, "--note", HOSTILE, "--tag", f"t{HOSTILE}={HOSTILE}", "--max-retries", "0"]
    odd = [b"--env", b"E" + BYTES + b"=" + BYTES, b"--cwd", b"/" + BYTES, b"--", b"p" + BYTES, BYTES]
    lines: list[list[str | bytes]] = [["add", *flags, *odd], ["add", *flags, *odd, "more"]]
    lines += [["add", "--max-retries", "0", "--", BYTES]]
    lines += [["add", "--max-retries", "0", "-c", b"exit 7 # " + BYTES], ["work", "--drain"]]
    lines += [["status"], ["list"], ["show", "1"], ["show", "2"], ["output", "1"], ["workers"], ["doctor"]]
    lines += [["doctor", "--deep"], ["retry", "1"], ["cancel", "1"], ["cancel", "99"]]
    for words in (["--queue", HOSTILE], ["--queue", BYTES], ["--at", HOSTILE], ["--key", BYTES], ["--note", BYTES]):
        lines.append(["add", *words, "true"])
    lines += [["work", "--worker-id", HOSTILE], ["work", "--queue", BYTES]]
    lines += [[HOSTILE], ["show", BYTES], ["--" + HOSTILE]]
    lines += [["--db", b"/" + BYTES + b"/x", verb, *rest] for verb, *rest in (["status"], ["add", "true"], ["work"])]
    lines += [["add", "--batch", b"/" + BYTES]]
    typed = [[os.fsdecode(word) for word in line] for line in lines]
    for answer in ask(spool, both(typed)):
        assert answer.code in (0, 1, 3, 5, 6), answer
        assert harmless(answer.out), answer
        assert harmless(answer.err), answer
        assert b"please report" not in answer.out + answer.err, answer
        if "--json" in answer.words:
            assert answer.out.isascii(), answer
            json.dumps(json.loads(answer.out), ensure_ascii=False).encode()  # no half of a surrogate pair
    job = spool.job(1)
    assert (job["note"], job["key"], job["tags"]) == (HOSTILE, HOSTILE, {f"t{HOSTILE}": HOSTILE})
    assert base64.b64decode(job["argv_b64"][1]) == BYTES


@pytest.mark.parametrize("what", ["program", "cwd"])
def test_a_job_that_cannot_be_started_and_has_odd_bytes_ends_no_worker(spool: Spool, what: str) -> None:
    """Its error names them. A worker that could not record it would leave, and so would every one after it."""
    words = [b"--", BYTES] if what == "program" else [b"--cwd", b"/" + BYTES, b"--", b"true"]
    job = spool.add("--max-retries", "0", *words)
    other = spool.add("true")
    spool.run("work", "--drain", code=6)
    assert [spool.state(number) for number in (job, other)] == ["dead", "done"]
    assert "No such file or directory" in spool.job(job)["error"]


@pytest.mark.parametrize("name", [b"\xff", BYTES])
def test_a_worker_in_a_folder_with_odd_bytes_survives_that_it_cannot_write_there(spool: Spool, name: bytes) -> None:
    folder = os.path.join(os.fsencode(spool.folder), name)
    os.mkdir(folder)
    spool.env["SPOOLCTL_DB"] = os.fsdecode(folder + b"/q.db")
    job = spool.add("true")
    os.rmdir(folder + b"/q.db.d/output")
    with open(folder + b"/q.db.d/output", "w"):
        pass
    worker = spool.worker()
    log = spool.folder / "worker-0.log"
    spool.until(lambda: b"Not a directory" in log.read_bytes() or worker.poll() is not None, "the complaint")
    os.unlink(folder + b"/q.db.d/output")
    os.mkdir(folder + b"/q.db.d/output", 0o700)
    spool.until(lambda: spool.job(job)["state"] == "done" or worker.poll() is not None, "the job")
    assert worker.poll() is None
    assert harmless(log.read_bytes())


def test_a_hostile_batch_is_shown_harmless_too(spool: Spool) -> None:
    line = {"argv": ["p" + HOSTILE, HOSTILE], "note": HOSTILE, "env": {"E" + HOSTILE: HOSTILE}, "max_retries": 0}
    wrong = [{"argv": [HOSTILE], HOSTILE: 1}, {"argv": [], "note": HOSTILE}, {"queue": HOSTILE, "argv": ["x"]}]
    done = [spool.run("add", "--batch", "-", stdin=json.dumps(one).encode(), code=1) for one in wrong]
    done += [spool.run("add", "--batch", "-", stdin=b'{"' + BYTES, code=1)]
    done += [spool.run("add", "--batch", "-", stdin=json.dumps(line).encode())]
    done += [spool.run("work", "--drain", code=6), spool.run("list"), spool.run("show", "1"), spool.run("status")]
    for one in done:
        assert harmless(one.stdout), one.stdout
        assert harmless(one.stderr), one.stderr


def test_a_worker_in_a_hostile_folder_logs_harmless_lines(spool: Spool) -> None:
    folder = os.fsencode(spool.folder) + b"/" + BYTES
    os.mkdir(folder)
    for words in (["add", "--", "true"], ["work", "--drain"], ["show", "1"], ["doctor"], ["status", "--json"]):
        done = subprocess.run([*spool.command, *words], cwd=folder, env=spool.env, capture_output=True, check=True)
        assert harmless(done.stdout + done.stderr), done
    os.chmod(folder + b"/.spoolctl", 0o777)
    done = subprocess.run([*spool.command, "work"], cwd=folder, env=spool.env, capture_output=True, check=False)
    assert done.returncode == 3
    assert harmless(done.stderr), done


# Values of the environment


def test_the_values_of_the_environment_are_in_show_and_nowhere_else(spool: Spool) -> None:
    """`show` is the one place for them; a log or a process list is read by more people."""
    secret = "hunter2" * 3
    words = ["--env", f"TOKEN={secret}", "--key", "k", "--max-retries", "0"]
    said = [spool.run("add", *words, "-c", "sleep 100"), spool.run("add", *words, "-c", "sleep 100")]
    said += [spool.run("add", "--env", f"TOKEN={secret}x", "--key", "k", "-c", "sleep 100", code=5)]
    said += [spool.run("add", "--env", f"TOKEN={secret}", "--max-retries", "0", "--", "./no such program")]
    said += [spool.run("add", "--env", f"TOKEN={secret}", "--max-retries", "0", "-c", "exit 3")]
    said += [spool.run("add", "--json", "--env", f"TOKEN={secret}", "--after", "1h", "true")]
    batch = json.dumps({"argv": ["true"], "env": {"TOKEN": secret}}).encode()
    said += [spool.run("add", "--batch", "-", stdin=batch)]
    worker = spool.worker("--jobs", "4")
    spool.until_state(1, "running")
    spool.until(lambda: spool.json("status")["counts"]["queued"] == 1, "all but the delayed one")
    for name in ("cmdline", "environ"):
        assert secret.encode() not in Path(f"/proc/{worker.pid}/{name}").read_bytes()
    for verb in (["status"], ["list"], ["workers"], ["doctor", "--deep"], ["output", "2"]):
        said += [spool.run(*verb), spool.run(verb[0], "--json", *verb[1:])]
    said += [spool.run("cancel", "--running", "--yes", "1"), spool.run("retry", "2")]
    for done in said:
        assert secret.encode() not in done.stdout + done.stderr, done
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(DEADLINE) == 0
    assert secret not in (spool.folder / "worker-0.log").read_text()
    assert f"TOKEN={secret}" in spool.text("show", "1")
    assert spool.job(1)["env"] == {"TOKEN": secret}
    kept = [path for path in everything(spool) if path.is_file() and secret.encode() in path.read_bytes()]
    assert {path.name for path in kept} <= {"queue.db", "queue.db-wal"}
