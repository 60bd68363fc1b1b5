"""The queue file in bad states: no file at all, somebody else's, cut short, overwritten, not to be written,
or taken away under a running worker.

Whatever is asked gets a right answer, or one line that says what is in the way and what to do; never a
traceback, never a hang, and what is not ours is not touched.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from spoolctl.errors import CODES
from tests.conftest import AS_NOBODY, FAST, Spool
from tests.crash import soundness

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE = 4096
NOBODY = 65534
DONE, WAITING = 30, 10  # jobs of the queue that is damaged here
READING = [["status"], ["list"], ["show", "1"], ["output", "1"], ["workers"]]
DOCTOR = [["doctor"], ["doctor", "--deep"]]
WRITING = [["add", "true"], ["cancel", "35"], ["retry", "--force", "1"]]
WORK = [["work", "--drain"]]
EVERY = [*READING, *DOCTOR, *WRITING, *WORK]
NOT_OURS = {"DAMAGED", "NOT_A_QUEUE"}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser: mounts, and files of other users")

# Loads the tool once and forks for each command line, which makes many of them affordable. argv: the
# command lines, where their output goes, the queue's path, and the image that is put there before each ("": none).
EACH = """
import json, os, shutil, signal, sys
import spoolctl.cli, spoolctl.store.creation, spoolctl.store.explain
from spoolctl.surface.help import all_verbs
all_verbs()
lines, outputs, queue, image = sys.argv[1:]
for number, words in enumerate(json.loads(lines)):
    if image:
        for ending in ("-wal", "-shm"):
            if os.path.exists(queue + ending):
                os.unlink(queue + ending)
        shutil.copyfile(image, queue)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        for descriptor in (1, 2):
            file = os.open(f"{outputs}/{number}.{descriptor}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
            os.close(file)
        sys.argv = ["spoolctl", *words]
        raise SystemExit(spoolctl.cli.main())
    status = os.waitpid(pid, 0)[1]
    print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
"""

# Submits `argv[2]` jobs, each acknowledged, and dies with them in the WAL.
KILLED = """
import os, signal, sys
from spoolctl.store.database import open_queue
from spoolctl.store.place import Place
from spoolctl.store.submit import Submission, submit
database = open_queue(Place(sys.argv[1]), create_missing=True)
for _ in range(int(sys.argv[2])):
    with database.write() as tx:
        submit(tx, 1, Submission([b"true"]))
os.kill(os.getpid(), signal.SIGKILL)
"""


class Answer(NamedTuple):
    """What one command line said. code: negative for the signal that ended it; SIGALRM: it hung."""

    words: list[str]
    code: int
    out: bytes
    err: bytes


def ask(spool: Spool, lines: Iterable[list[str]], image: bytes | None = None) -> list[Answer]:
    """Each command line's answer. image: what the queue file is before each of them, without -wal and -shm."""
    lines = list(lines)
    outputs = Path(tempfile.mkdtemp(dir=spool.folder.parent))
    source = outputs / "image"
    if image is not None:
        source.write_bytes(image)
    command = [sys.executable, "-c", EACH, json.dumps(lines), str(outputs), spool.place.path]
    command.append(str(source) if image is not None else "")
    done = subprocess.run(command, cwd=spool.folder, env=spool.env, capture_output=True, timeout=100, check=True)
    answers = []
    for number, (words, code) in enumerate(zip(lines, done.stdout.split())):
        said = [(outputs / f"{number}.{descriptor}").read_bytes() for descriptor in (1, 2)]
        answers.append(Answer(words, int(code), said[0], said[1]))
    shutil.rmtree(outputs)
    for answer in answers:
        assert answer.code >= 0, ("it hung", answer)
        assert b"Traceback" not in answer.err, answer
    return answers


def both(lines: list[list[str]]) -> list[list[str]]:
    """Each command line, as a person and as a program types it."""
    return [*lines, *([words[0], "--json", *words[1:]] for words in lines)]


def refusal(answer: Answer) -> str:
    """The code of a refusal, "" of one in text; its form is checked: one line or one object, with a remedy."""
    if "doctor" in answer.words:
        assert answer.code == 3, answer
        checks = json.loads(answer.out)["checks"] if "--json" in answer.words else []
        assert [check["remedy"] for check in checks if check["result"] == "failed"] or b"failed" in answer.out, answer
        return ""
    if "--json" in answer.words:
        error = json.loads(answer.out)["error"]
        assert error["message"], answer
        assert error["hint"], answer
        assert answer.code == CODES[error["code"]][0], answer
        return str(error["code"])
    last = answer.err.decode().splitlines()[-1]
    assert answer.out == b"", answer
    assert last.startswith("spoolctl: error: "), answer
    assert last.endswith(")"), answer
    return ""


def refuses(answers: list[Answer], *codes: str) -> None:
    """All of them are refusals, with one of these codes."""
    for answer in answers:
        assert refusal(answer) in ("", *codes), answer


def tree(spool: Spool) -> dict[str, int]:
    """Every path of the spool directory with its size."""
    return {str(path): path.lstat().st_size for path in (spool.folder / ".spoolctl").rglob("*")}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A queue that has lived, and that nobody has open."""
    spool = Spool(tmp_path_factory.mktemp("kept"))
    command = "echo out of $SPOOLCTL_JOB_ID; test $SPOOLCTL_JOB_ID != 3"
    line = json.dumps({"argv": ["sh", "-c", command], "tags": {"a": "b"}, "note": "n" * 200, "max_retries": 0})
    spool.run("add", "--batch", "-", stdin=f"{line}\n".encode() * DONE)
    spool.run("work", "--drain", "--jobs", "2", code=6)
    waiting = json.dumps({"argv": ["true"], "note": "m" * 300})
    spool.run("add", "--batch", "-", stdin=f"{waiting}\n".encode() * WAITING)
    return spool.folder


@pytest.fixture
def lived(kept: Path, tmp_path: Path) -> Iterator[Spool]:
    """A copy of it."""
    folder = tmp_path / "lived"
    shutil.copytree(kept, folder)
    spool = Spool(folder)
    yield spool
    spool.close()


# What is there is no queue


def test_a_missing_and_an_empty_file_are_both_no_queue_yet(spool: Spool) -> None:
    """Reading verbs answer from nothing, and leave nothing; the first submission makes the queue."""
    asking = both([*READING, *DOCTOR])
    missing = ask(spool, asking)
    assert tree(spool) == {}
    (spool.folder / ".spoolctl").mkdir(mode=0o700)
    Path(spool.place.path).touch()
    before = tree(spool)
    assert ask(spool, asking) == missing
    assert tree(spool) == before
    assert {answer.words[0]: answer.code for answer in missing} == {
        "status": 0, "list": 0, "workers": 0, "show": 1, "output": 1, "doctor": 0
    }  # fmt: skip
    assert spool.add("true") == 1


@pytest.mark.parametrize("what", ["a directory", "a device", "a fifo", "a socket"])
def test_what_is_no_regular_file_is_no_queue_and_nobody_waits_for_it(spool: Spool, what: str) -> None:
    path = Path(spool.place.path)
    path.parent.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    if what == "a directory":
        path.mkdir()
    elif what == "a device":
        path.symlink_to(os.devnull)
    elif what == "a fifo":
        os.mkfifo(path)
    else:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path must be short
        listener.bind(path.name)
        os.chdir(here)
    before = tree(spool)
    refuses(ask(spool, both(EVERY)), "NOT_A_QUEUE", "UNSAFE_QUEUE")  # everybody may write to a device
    listener.close()
    assert tree(spool) == before


def foreign(path: Path, application: int = 0) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE accounts (name TEXT)")
    connection.execute(f"PRAGMA application_id = {application}")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("what", ["a text", "one byte", "zeros", "a foreign database", "one in WAL mode"])
def test_a_file_of_somebody_else_is_refused_and_not_touched(spool: Spool, what: str) -> None:
    path = Path(spool.place.path)
    path.parent.mkdir(mode=0o700)
    contents = {"a text": b"Dear diary,\n" * 1000, "one byte": b"S", "zeros": bytes(3 * PAGE)}
    if what in contents:
        path.write_bytes(contents[what])
    else:
        foreign(path, 0 if what == "a foreign database" else 1)
    if what == "one in WAL mode":
        sqlite3.connect(path).execute("PRAGMA journal_mode = WAL").connection.close()
    before = path.read_bytes()
    refuses(ask(spool, both(EVERY)), "NOT_A_QUEUE", "DAMAGED")
    assert path.read_bytes() == before
    assert tree(spool) == {str(path): len(before)}


@pytest.mark.parametrize("table", ["jobs", "jobs, attempts"])
def test_a_queue_of_an_earlier_spoolctl_is_refused_by_name_with_the_way_on(spool: Spool, table: str) -> None:
    """It stands at the same path, so an upgrade meets it: "not a queue of spoolctl" would be a riddle."""
    path = Path(spool.place.path)
    path.parent.mkdir(mode=0o700)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, argv TEXT, state TEXT, attempts INTEGER)")
    if "attempts" in table:
        connection.execute("CREATE TABLE attempts (job_id INTEGER, attempt INTEGER, state TEXT)")
    connection.execute("INSERT INTO jobs VALUES (1, '[\"true\"]', 'queued', 0)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    answers = ask(spool, both(EVERY))
    refuses(answers, "NOT_A_QUEUE")
    for answer in answers:
        assert b"earlier spoolctl" in answer.out + answer.err, answer
        assert b"--db" in answer.out + answer.err, answer
    assert path.read_bytes() == before


# Damage


@pytest.mark.parametrize("size", [1, 99, 100, 512, PAGE - 1, PAGE, 2 * PAGE, 2 * PAGE + 7, -PAGE, 0.5])
def test_a_file_that_was_cut_short_is_told_by_every_verb_and_left_as_it_is(lived: Spool, size: float) -> None:
    whole = Path(lived.place.path).read_bytes()
    left = whole[: len(whole) // 2 if size == 0.5 else int(size)]
    Path(lived.place.path).write_bytes(left)
    refuses(ask(lived, both(EVERY)), *NOT_OURS)
    assert Path(lived.place.path).read_bytes() == left


def overwritten(whole: bytes, at: int, size: int, chance: random.Random) -> bytes:
    return whole[:at] + bytes(chance.getrandbits(8) for _ in range(size)) + whole[at + size :]


def test_a_page_of_random_bytes_never_makes_a_wrong_answer_and_doctor_finds_it(lived: Spool) -> None:
    """Each page of the file in turn. SQLite has no checksums: what a verb does not look at, it cannot see, and
    then its answer is the same as ever. `doctor --deep` looks at all of it."""
    whole = Path(lived.place.path).read_bytes()
    sound = {tuple(answer.words): answer for answer in ask(lived, both(READING))}
    for page in range(len(whole) // PAGE):
        chance = random.Random(page)
        damaged = overwritten(whole, page * PAGE, PAGE, chance)
        verbs = (READING + WRITING)[page % 2 :: 2]
        some = [chance.choice([words, [words[0], "--json", *words[1:]]]) for words in verbs]
        for answer in ask(lived, [*some, ["doctor", "--deep"]], damaged):
            if answer.words[0] == "doctor" or answer.code:
                assert refusal(answer) in ("", *NOT_OURS), (page, answer)
            elif tuple(answer.words) in sound:
                assert answer.out == sound[tuple(answer.words)].out, (page, answer)


@pytest.mark.parametrize("where", ["header", "schema", "anywhere"])
def test_some_random_bytes_never_make_a_traceback_a_hang_or_a_defect_of_ours(lived: Spool, where: str) -> None:
    """A wrong value cannot be told from a right one; but what cannot be read is called damage. `INTERNAL`
    would send the reader to us, and `IO_ERROR` to the disk."""
    whole = Path(lived.place.path).read_bytes()
    schema = len(whole) // PAGE // 2  # its first pages; the data comes behind
    span = {"header": (0, 100), "schema": (100, schema * PAGE), "anywhere": (0, len(whole))}[where]
    for seed in range(6):
        chance = random.Random(seed)
        size = chance.choice([1, 4, 16, 100])
        damaged = overwritten(whole, chance.randrange(span[0], span[1] - size + 1), size, chance)
        for answer in ask(lived, both(READING + DOCTOR + WRITING)[chance.randrange(2) :: 2], damaged):
            if answer.words[0] == "doctor":
                assert answer.code in (0, 3), (seed, answer)
            elif answer.code == 3 and "--json" in answer.words:
                assert refusal(answer) in {*NOT_OURS, "NEWER_QUEUE", "READ_ONLY"}, (seed, answer)
            else:
                assert answer.code in (0, 1, 3, 5), (seed, answer)
                assert b"please report" not in answer.err, (seed, answer)


def test_a_text_that_is_not_utf8_any_more_is_damage(lived: Spool) -> None:
    """One flipped bit in a note. Python's SQLite reports it in words of its own."""
    whole = Path(lived.place.path).read_bytes()
    at = whole.index(b"m" * 100) + 50
    (answer,) = ask(lived, [["list", "--json"]], whole[:at] + b"\xed" + whole[at + 1 :])
    assert refusal(answer) == "DAMAGED"


def test_a_column_that_lost_its_name_is_damage(lived: Spool) -> None:
    """One flipped bit in the schema, which SQLite reads as it is."""
    whole = Path(lived.place.path).read_bytes()
    damaged = whole.replace(b"user_seconds   REAL", b"usar_seconds   REAL")
    assert damaged != whole
    for answer in ask(lived, both([["show", "1"], ["output", "1"], *WORK])[3:], damaged):
        assert refusal(answer) == "DAMAGED"


def test_a_worker_leaves_a_damaged_queue_and_says_why(lived: Spool) -> None:
    """No waiting helps: a worker that went on would never end, and `work --drain && deploy` would hang."""
    whole = Path(lived.place.path).read_bytes()
    left_with = []
    for page in range(0, len(whole) // PAGE, 2):
        damaged = overwritten(whole, page * PAGE, PAGE, random.Random(page))
        (answer,) = ask(lived, [["work", "--json", "--drain"]], damaged)
        left_with.append(refusal(answer) if answer.code else "")
    assert set(left_with) <= {"", *NOT_OURS}
    assert left_with.count("DAMAGED") > 2


# The WAL and its index


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Spool]:
    """Three jobs in the file, twenty more in the WAL of a writer that was killed."""
    spool = Spool(tmp_path / "killed")
    spool.folder.mkdir()
    spool.run("add", "--batch", "-", stdin=b'{"argv": ["true"]}\n' * 3)
    leave_a_wal(spool, 20)
    yield spool
    spool.close()


def leave_a_wal(spool: Spool, jobs: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, spool.place.path, str(jobs)], env=spool.env, check=False)
    assert done.returncode == -signal.SIGKILL


def left(spool: Spool) -> dict[str, bytes]:
    return {ending: Path(spool.place.path + ending).read_bytes() for ending in ("", "-wal", "-shm")}


def put(spool: Spool, files: dict[str, bytes]) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(spool.place.path + ending).unlink(missing_ok=True)
        if ending in files:
            Path(spool.place.path + ending).write_bytes(files[ending])


def jobs_of_sound(spool: Spool) -> int:
    """How many jobs there are; the first ones without a gap, in a sound file that takes another one."""
    listed, deep, added = ask(spool, [["list", "--json", "--limit", "99"], ["doctor", "--deep"], ["add", "true"]])
    ids = [job["id"] for job in json.loads(listed.out)["jobs"]]
    assert ids == list(range(len(ids), 0, -1))
    assert deep.code == 0, deep
    assert added.out == f"Added job {len(ids) + 1}\n".encode()
    return len(ids)


def test_what_a_killed_writer_left_in_the_wal_is_all_there(killed: Spool) -> None:
    assert jobs_of_sound(killed) == 23
    soundness.check(killed)


@pytest.mark.parametrize("index", ["with its index", "without"])
def test_a_wal_that_is_gone_takes_only_what_was_in_it(killed: Spool, index: str) -> None:
    files = left(killed)
    put(killed, {ending: files[ending] for ending in ("", *(["-shm"] if index == "with its index" else []))})
    assert jobs_of_sound(killed) == 3


def test_a_wal_that_was_cut_short_takes_only_what_was_behind(killed: Spool) -> None:
    files = left(killed)
    counts = []
    for size in (0, 1, 31, 32, 33, 32 + 24 + PAGE - 1, len(files["-wal"]) // 3, len(files["-wal"]) - 1):
        put(killed, {**files, "-wal": files["-wal"][:size]})
        counts.append(jobs_of_sound(killed))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (3, 22)
    assert 3 < counts[-2] < 22


def test_random_bytes_in_a_wal_take_only_what_was_behind_them(killed: Spool) -> None:
    """SQLite's checksums stop there: what comes behind is not believed, and nothing of it half."""
    files = left(killed)
    for seed in range(8):
        chance = random.Random(seed)
        at = chance.randrange(len(files["-wal"]) - 16)
        put(killed, {**files, "-wal": overwritten(files["-wal"], at, 16, chance)})
        found = jobs_of_sound(killed)
        assert found <= 3 + 20 * at // len(files["-wal"]) + 1, (seed, at, found)


def test_random_bytes_in_the_index_of_the_wal_lose_nothing_where_nobody_has_it_open(killed: Spool) -> None:
    files = left(killed)
    for seed, size in enumerate([1, 16, 48, 136, PAGE, len(files["-shm"])]):
        at = 0 if seed % 2 else random.Random(seed).randrange(len(files["-shm"]) - size + 1)
        put(killed, {**files, "-shm": overwritten(files["-shm"], at, size, random.Random(seed))})
        assert jobs_of_sound(killed) == 23, (seed, size)


def test_the_wal_of_another_queue_makes_no_traceback_and_no_hang(killed: Spool, lived: Spool) -> None:
    """Nothing ties a WAL to its file, so SQLite believes it. What that makes of the queue is found by
    doctor where it does not fit together."""
    files = left(killed)
    put(lived, {"": Path(lived.place.path).read_bytes(), "-wal": files["-wal"]})
    for answer in ask(lived, both([*READING, ["doctor", "--deep"]])):
        if answer.code and answer.words[0] not in ("show", "output"):
            assert refusal(answer) in ("", *NOT_OURS)
    assert ask(lived, [["doctor", "--deep"]])[0].code == 3


# Where it cannot be written


@pytest.fixture
def shared() -> Iterator[Spool]:
    """A queue of another user, used as that user, in a folder that this one can reach."""
    folder = Path(tempfile.mkdtemp())
    spool = Spool(folder)
    try:
        spool.run("add", "--", "echo", "hi")
        spool.run("work", "--drain")
        spool.run("add", "--", "true")
        subprocess.run(["chown", "-R", str(NOBODY), str(folder)], check=True)
        spool.command = [sys.executable, "-c", AS_NOBODY]
        yield spool
    finally:
        spool.close()
        shutil.rmtree(folder)


def reads_and_refuses_to_write(spool: Spool, code: str = "READ_ONLY") -> None:
    assert spool.json("status")["counts"] == {
        "queued": 1, "running": 0, "done": 1, "failed": 0, "dead": 0, "canceled": 0
    }  # fmt: skip
    assert [job["id"] for job in spool.json("list")["jobs"]] == [2, 1]
    assert spool.job(1)["state"] == "done"
    assert spool.text("output", "1") == "hi\n"
    assert spool.text("workers") == ""
    assert {check["result"] for check in spool.json("doctor", "--deep")["checks"]} == {"ok", "look"}
    for words in (["add", "true"], ["cancel", "2"], ["retry", "--force", "1"], ["work", "--drain"]):
        error = spool.json(*words, code=3)["error"]
        assert error["code"] == code, (words, error)
        assert error["hint"], (words, error)
    assert spool.json("status")["counts"]["queued"] == 1


@needs_root
def test_a_file_that_its_user_may_only_read_is_read_and_not_written(shared: Spool) -> None:
    os.chmod(shared.place.path, 0o400)
    reads_and_refuses_to_write(shared)
    assert os.stat(shared.place.path).st_mode & 0o777 == 0o400


def on_a_read_only_mount(spool: Spool) -> None:
    """From here on the tool sees the folder as a file system that nobody can write. The mount is in a
    namespace of its own: it goes with each process."""
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("mounts in a namespace of its own, which needs the superuser and unshare")
    script = 'mount --bind . . && mount -o remount,ro,bind . && cd "$PWD" && exec "$@"'
    prefix = ["unshare", "-m", "sh", "-c", script, "sh"]
    if subprocess.run([*prefix, "true"], cwd=spool.folder, capture_output=True, check=False).returncode:
        pytest.skip("mounts in a namespace of its own, which is not permitted here")
    spool.command = [*prefix, *spool.command]


def one_done_one_waiting(spool: Spool) -> None:
    spool.run("add", "--", "echo", "hi")
    spool.run("work", "--drain")
    spool.run("add", "true")


def test_a_queue_on_a_read_only_mount_is_read_and_not_written(spool: Spool) -> None:
    one_done_one_waiting(spool)
    before = tree(spool)
    on_a_read_only_mount(spool)
    reads_and_refuses_to_write(spool)
    assert tree(spool) == before


def test_a_wal_on_a_read_only_mount_is_read_where_its_index_is_there(spool: Spool) -> None:
    """What was acknowledged is in it."""
    spool.run("add", "--", "echo", "hi")
    spool.run("work", "--drain")
    leave_a_wal(spool, 1)
    on_a_read_only_mount(spool)
    reads_and_refuses_to_write(spool)


def test_a_wal_on_a_read_only_mount_without_its_index_is_read_as_well(spool: Spool) -> None:
    """Nobody else can be there, so the index is made in the reader's memory."""
    spool.run("add", "--", "echo", "hi")
    spool.run("work", "--drain")
    leave_a_wal(spool, 1)
    os.unlink(spool.place.path + "-shm")
    on_a_read_only_mount(spool)
    reads_and_refuses_to_write(spool)


def test_a_read_only_mount_with_nothing_in_it_has_no_queue_and_gets_none(spool: Spool) -> None:
    on_a_read_only_mount(spool)
    assert spool.json("status")["counts"]["queued"] == 0
    for words in (["add", "true"], ["work", "--drain"]):
        error = spool.json(*words, code=3)["error"]
        assert error["code"] == "READ_ONLY"
        assert "Read-only file system" in error["message"]
    assert list(spool.folder.iterdir()) == []


# Taken away under a running worker


def log(spool: Spool, number: int = 0) -> str:
    return (spool.folder / f"worker-{number}.log").read_text()


def running(spool: Spool, workers: int = 1) -> list[subprocess.Popen[bytes]]:
    """Workers with a command each under way."""
    jobs = [spool.add("-c", "echo started >>ran; exec sleep 100") for _ in range(workers)]
    started = [spool.worker() for _ in range(workers)]
    for job in jobs:
        spool.until_state(job, "running")
    spool.until(lambda: commands(spool) == workers, "the commands")
    return started


def commands(spool: Spool) -> int:
    """How many of the jobs' commands live."""
    mine = [Path(f"/proc/{pid}/cmdline") for pid in spool.left_running()]
    return sum(path.read_bytes().startswith(b"sleep\0") for path in mine if path.exists())


def replace(spool: Spool, what: str) -> None:
    """Put something else where the queue file is."""
    path = Path(spool.place.path)
    other = spool.folder / "other"
    if what == "a new queue":
        spool.run("--db", str(other), "add", "--", "echo", "new")
    elif what == "a foreign database":
        foreign(other)
    elif what == "a text":
        other.write_text("Dear diary,\n")
    elif what == "an empty file":
        other.touch()
    if other.exists():
        other.rename(path)
    else:
        path.rename(spool.folder / "aside")
    if what == "a directory":
        path.mkdir()
    elif what == "a queue that add made":
        spool.run("add", "--", "echo", "new")


REPLACED = ["nothing", "a new queue", "a queue that add made", "a foreign database", "a text", "an empty file"]
REPLACED += ["a directory"]


@pytest.mark.parametrize("what", REPLACED)
def test_a_worker_whose_file_was_replaced_leaves_and_does_not_touch_what_is_there(spool: Spool, what: str) -> None:
    (worker,) = running(spool)
    path = Path(spool.place.path)
    replace(spool, what)
    before = path.read_bytes() if path.is_file() else None
    assert worker.wait(60) == 3
    assert "was removed or replaced" in log(spool).splitlines()[-1]
    assert commands(spool) == 0
    assert (path.read_bytes() if path.is_file() else None) == before
    assert path.exists() == (what != "nothing")
    if "queue" in what:
        assert [job["argv"] for job in spool.json("list")["jobs"]] == [["echo", "new"]]
        assert (spool.state(1), spool.attempts(1)) == ("queued", [])
        soundness.check(spool)
    elif what == "a foreign database":
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("accounts",)]
        connection.close()


def test_many_workers_leave_a_queue_that_was_removed_and_made_again(spool: Spool) -> None:
    workers = running(spool, 4)
    replace(spool, "a queue that add made")
    before = Path(spool.place.path).read_bytes()
    assert [worker.wait(60) for worker in workers] == [3] * 4
    assert all("was removed or replaced" in log(spool, number) for number in range(4))
    assert commands(spool) == 0
    assert Path(spool.place.path).read_bytes() == before
    assert (spool.state(1), spool.attempts(1)) == ("queued", [])
    soundness.check(spool)


@pytest.mark.parametrize("ending", ["-wal", "-shm"])
def test_a_worker_whose_wal_was_removed_says_so_leaves_and_loses_nothing(spool: Spool, ending: str) -> None:
    """Others cannot see what it writes from then on, or write past it: each moment longer loses more. It has
    the file still open, so what was acknowledged can be put back where it belongs."""
    (worker,) = running(spool)
    waiting = [spool.add("--after", "1h", "true") for _ in range(3)]
    os.unlink(spool.place.path + ending)
    try:
        assert worker.wait(20) == 3
    except subprocess.TimeoutExpired:
        worker.send_signal(signal.SIGTERM)
        pytest.fail("the worker has not noticed")
    assert ending in log(spool).splitlines()[-1]
    assert commands(spool) == 0
    soundness.check(spool)
    assert [spool.state(job) for job in waiting] == ["queued"] * 3


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_worker_whose_spool_folder_is_gone_loses_no_job_doubles_none_and_says_what_is_missing(
    spool: Spool, how: str
) -> None:
    """Its lock file went with the folder: its heartbeat and its pid protect its job until it is back."""
    spool.env.update(FAST)
    first = spool.add("-c", "echo out; echo $SPOOLCTL_ATTEMPT >>runs; until [ -e go ]; do sleep 0.02; done")
    worker = spool.worker()
    spool.until(lambda: (spool.folder / "runs").exists(), "the command")
    folder = Path(spool.place.folder)
    if how == "removed":
        shutil.rmtree(folder)
    else:
        folder.rename(spool.folder / "aside")
    second = spool.add("-c", "echo two")  # it makes the folders again
    peer = spool.worker()
    spool.until_state(second, "done")
    assert spool.state(first) == "running"
    (spool.folder / "go").touch()
    spool.until_state(first, "done")
    assert (spool.folder / "runs").read_text() == "1\n"
    assert spool.text("output", str(second)) == "two\n"
    for process in (worker, peer):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    soundness.check(spool)
    assert b"is gone" in spool.run("output", str(first), code=3).stderr
    assert spool.attempts(first)[0]["stdout"]["missing"]


def test_a_worker_without_an_output_folder_says_so_and_goes_on_when_it_is_back(spool: Spool) -> None:
    gate = spool.add("-c", "until [ -e go ]; do sleep 0.02; done")
    job = spool.add("-c", "echo out")
    worker = spool.worker()
    spool.until_state(gate, "running")
    os.rename(spool.place.outputs, spool.place.outputs + ".gone")
    (spool.folder / "go").touch()
    spool.until(lambda: "No such file or directory" in log(spool), "the complaint")
    [look] = [check for check in spool.json("doctor")["checks"] if check["check"] == "writing"]
    assert (look["result"], look["remedy"]) == ("look", "the next add or work makes it")
    spool.add("true")
    spool.until_state(job, "done")
    assert worker.poll() is None
    assert spool.text("output", str(job)) == "out\n"
    attempts: list[dict[str, Any]] = spool.attempts(job)
    assert [attempt["state"] for attempt in attempts].count("succeeded") == 1
    assert spool.job(job)["failures"] == 0
    soundness.check(spool)
