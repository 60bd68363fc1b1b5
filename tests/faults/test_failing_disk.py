"""A disk that fails: writes, syncs, reads and openings that give EIO, ENOSPC, EDQUOT or EMFILE.

The faults are put into the system calls by strace, on files of the queue alone; a disk that is gone
for good is a real one, shut down under the worker. Whatever fails, the answer and the queue agree:
what was acknowledged is there, what was refused is not and does not come back, nothing runs twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spoolctl.store.database import open_queue
from tests.conftest import DEADLINE, FAST, Spool
from tests.crash import soundness
from tests.faults.test_power_cut import EXT4_IOC_SHUTDOWN, NO_FLUSH, Disk, disk  # noqa: F401 (a fixture)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Done = subprocess.CompletedProcess[bytes]

COUNTED = "echo $SPOOLCTL_JOB_ID >>ran"  # a line an execution
FAILING = f"{COUNTED}; exit 7"
LATER = f"until [ -e go ]; do sleep 0.02; done; {COUNTED}"
BATCH = b'{"argv": ["true"]}\n' * 3
# Keeps the queue open, so that nobody else is the last to close it.
HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM jobs").fetchone()
print("open", flush=True)
time.sleep(600)
"""
FILES = ("", "-wal", "-shm", ".new", ".new-wal", ".new-shm", ".d", ".d/output", ".d/workers", ".d/bell")


@pytest.fixture
def traced(spool: Spool) -> Spool:
    """A queue whose processes may be traced."""
    if shutil.which("strace") is None:
        pytest.skip("puts faults into system calls with strace")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode:
        pytest.skip("traces processes, which is not permitted here")
    return spool


def injection(spool: Spool, fault: str, paths: Sequence[str]) -> list[str]:
    """The strace that puts `fault`, as `calls:error=E:when=N`, into calls on these files and folders. Their
    writes and syncs are noted as well, in `faults`."""
    calls = f"trace=pwrite64,fdatasync,fsync,{fault.split(':')[0]}"
    words = ["strace", "-qq", "-y", "-o", str(spool.folder / "faults"), "-e", calls, "-e", f"inject={fault}"]
    return words + [word for path in paths for word in ("-P", path)]


def of_queue(spool: Spool, *endings: str) -> list[str]:
    return [spool.place.path + ending for ending in endings]


def everything(spool: Spool) -> list[str]:
    """Every file and folder of the queue, but for the outputs."""
    return [*of_queue(spool, *FILES), os.path.dirname(spool.place.path)]


def ended(spool: Spool, command: list[str], stdin: bytes = b"", limit: int | None = None) -> Done:
    """Run a command to its end. limit: of the size of its files, bytes."""
    done = subprocess.run(
        command,
        cwd=spool.folder,
        env={**spool.env, **FAST},
        input=stdin,
        capture_output=True,
        timeout=DEADLINE,
        check=False,
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done


def faulty(spool: Spool, fault: str, paths: Sequence[str], *words: str, stdin: bytes = b"") -> Done:
    """Run one command line, with --json, to its end while `fault` is on."""
    tracer = [*injection(spool, fault, paths), "-f", "--seccomp-bpf"]  # faster; cannot be had for what runs already
    return ended(spool, [*tracer, *spool.command, words[0], "--json", *words[1:]], stdin)


def finish(spool: Spool) -> None:
    """A worker without a fault does what is left."""
    spool.env.update(FAST)
    assert spool.run("work", "--drain", code=None).returncode in (0, 6)


def injected(spool: Spool) -> int:
    """How many calls the fault has met so far."""
    faults = spool.folder / "faults"
    return len(re.findall(r"\((INJECTED|DELAYED)\)", faults.read_text())) if faults.exists() else 0


def written_again(spool: Spool) -> bool:
    """Whether after the fault something was written, and synced. A sync that is only called again
    proves nothing: Linux has marked the pages that it could not write as clean."""
    after = (spool.folder / "faults").read_text().rpartition("(INJECTED)")[2]
    return re.search(r"pwrite64\(.*(fdatasync|fsync)\(", after, re.DOTALL) is not None


@contextlib.contextmanager
def trouble(spool: Spool, worker: subprocess.Popen[bytes], fault: str, *endings: str) -> Iterator[None]:
    """The fault, in a worker that runs, for the time of the block."""
    tracer = subprocess.Popen([*injection(spool, fault, of_queue(spool, *endings)), "-p", str(worker.pid)])
    try:
        spool.until(lambda: "TracerPid:\t0" not in status_of(worker), "the tracer")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)  # it lets go of the worker and leaves
        tracer.wait(DEADLINE)


def status_of(worker: subprocess.Popen[bytes]) -> str:
    with open(f"/proc/{worker.pid}/status") as status:
        return status.read()


def log(spool: Spool, number: int = 0) -> str:
    return (spool.folder / f"worker-{number}.log").read_text()


def jobs(spool: Spool) -> list[int]:
    """The numbers of all jobs, read from the file; where it needs recovery, that happens here."""
    database = open_queue(spool.place, read_only=True)
    try:
        with database.read() as tx:
            return [row[0] for row in tx.execute("SELECT id FROM jobs ORDER BY id")]
    finally:
        database.close()


def executions(spool: Spool) -> list[int]:
    """The job of each execution so far, in their order."""
    ran = spool.folder / "ran"
    return [int(line) for line in ran.read_text().split()] if ran.exists() else []


def refusal(done: Done) -> dict[str, str]:
    """The error of a command line that was refused: one object, exit status 3, a cause."""
    assert done.returncode == 3, (done.stdout, done.stderr)
    error: dict[str, str] = json.loads(done.stdout)["error"]
    assert error["message"]
    assert "\n" not in error["message"]
    return error


def agree(spool: Spool, done: Done, before: list[int]) -> None:
    """An answer of `add` and the queue say the same."""
    if done.returncode == 0:
        answer = json.loads(done.stdout)
        assert jobs(spool) == before + (answer["ids"] if "ids" in answer else [answer["job_id"]])
    else:
        refusal(done)
        assert jobs(spool) == before, "what was refused is there"


def hold(spool: Spool) -> None:
    """Somebody who has the queue open, as a worker would."""
    command = [sys.executable, "-c", HOLDER, spool.place.path]
    holder = subprocess.Popen(command, env=spool.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    spool.processes.append(holder)
    assert holder.stdout
    with holder.stdout:
        assert holder.stdout.readline() == b"open\n"


def bury(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


# --- add ---


def alone(spool: Spool) -> list[int]:
    """Nobody has the queue open, and there is no WAL. The jobs that are there."""
    return [spool.add("true")]


def held(spool: Spool) -> list[int]:
    """Somebody has the queue open, and the WAL is empty."""
    there = alone(spool)
    hold(spool)
    return there


def held_and_used(spool: Spool) -> list[int]:
    """Somebody has the queue open, and something is in the WAL."""
    return [*held(spool), spool.add("true")]


def left(spool: Spool) -> list[int]:
    """Everybody was killed: the WAL is what they have left."""
    there = held_and_used(spool)
    kill_all(spool)
    return there


def kill_all(spool: Spool) -> None:
    for process in spool.processes:
        bury(process)


ONE, BATCHED = ("add", "true"), ("add", "--batch", "-")


@pytest.mark.parametrize(
    ("situation", "number", "words"),
    [
        # An empty WAL is synced for its header, then for the COMMIT, and by the last to close for the checkpoint.
        (alone, 1, ONE),
        (alone, 2, ONE),
        (alone, 3, ONE),
        (held, 1, ONE),
        (held, 2, ONE),
        (held, 2, BATCHED),
        # One with something in it needs no header.
        (held_and_used, 1, ONE),
        (held_and_used, 1, BATCHED),
        (left, 1, ONE),
        (left, 2, ONE),
    ],
)
def test_an_add_whose_sync_fails_once_finds_out_what_became_of_it(
    traced: Spool, situation: Callable[[Spool], list[int]], number: int, words: tuple[str, ...]
) -> None:
    """Protects the second look of `add` after a COMMIT that failed in fsync. Its pages are in the WAL with
    good checksums: where nobody writes over them, the recovery after everybody's death brings the job back."""
    before = situation(traced)  # not read from the file: whoever does is the last to close it
    done = faulty(traced, f"fdatasync:error=EIO:when={number}", of_queue(traced, "-wal"), *words, stdin=BATCH)
    assert injected(traced) == 1
    again = written_again(traced)
    kill_all(traced)
    agree(traced, done, before)
    if (situation, number) not in ((alone, 3), (left, 2)):
        assert done.returncode == 3 or again, "acknowledged, and not on disk"
    soundness.check(traced)


@pytest.mark.parametrize(("verb", "state"), [("cancel", "canceled"), ("retry", "queued")])
def test_a_change_whose_sync_fails_is_made_and_told_or_not_made(traced: Spool, verb: str, state: str) -> None:
    """The same for what else is acknowledged: what was refused must not have happened after all."""
    job = traced.add("--max-retries", "0", "false")
    if verb == "retry":
        finish(traced)
    before = traced.state(job)
    hold(traced)
    traced.add("true")
    done = faulty(traced, "fdatasync:error=EIO:when=1", of_queue(traced, "-wal"), verb, str(job))
    assert injected(traced) == 1
    kill_all(traced)
    if done.returncode:
        refusal(done)
    assert traced.state(job) == (before if done.returncode else state)
    soundness.check(traced)


@pytest.mark.parametrize(
    ("situation", "when"), [(alone, "2+"), (held, "2+"), (held_and_used, "1+"), (left, "1+")]
)
def test_an_add_on_a_disk_that_never_syncs_is_refused_and_stays_refused(
    traced: Spool, situation: Callable[[Spool], list[int]], when: str
) -> None:
    """It cannot be acknowledged: no sync has succeeded. And it must not be there after everybody's death."""
    before = situation(traced)  # not read from the file: whoever does is the last to close it
    done = faulty(traced, f"fdatasync:error=EIO:when={when}", of_queue(traced, "-wal"), "add", "true")
    assert injected(traced)
    kill_all(traced)
    assert refusal(done)["code"] == "IO_ERROR"
    assert jobs(traced) == before, "what was refused is there"
    assert traced.add("true") == before[-1] + 1
    soundness.check(traced)


@pytest.mark.parametrize(
    ("error", "words"), [("EIO", "I/O error"), ("ENOSPC", "full"), ("EDQUOT", "quota"), ("EFBIG", "limit")]
)
def test_an_add_that_cannot_write_says_what_is_wrong_and_leaves_nothing(traced: Spool, error: str, words: str) -> None:
    traced.add("true")
    for number in (1, 5):
        done = faulty(traced, f"pwrite64:error={error}:when={number}+", of_queue(traced, "-wal"), "add", "true")
        assert injected(traced)
        told = refusal(done)
        assert words in told["message"] + told["hint"]
        assert told["hint"]
        assert jobs(traced) == [1]
    assert traced.add("true") == 2
    soundness.check(traced)


def test_a_refusal_is_one_line_of_text_without_json(traced: Spool) -> None:
    traced.add("true")
    fault = injection(traced, "pwrite64:error=ENOSPC:when=1+", of_queue(traced, "-wal"))
    done = ended(traced, [*fault, *traced.command, "add", "true"])
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"spoolctl: error: ")
    assert b"full" in done.stderr


@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        ("openat:error=EMFILE", ""),
        ("openat:error=EMFILE", "-wal"),
        ("openat:error=EIO", ""),
        ("openat:error=ENOSPC", "-wal"),
        ("mmap:error=ENOMEM", "-shm"),
    ],
)
@pytest.mark.parametrize("words", [("add", "true"), ("work", "--drain")], ids=["add", "work"])
def test_a_queue_that_cannot_be_opened_is_left_alone(
    traced: Spool, words: tuple[str, ...], fault: str, ending: str
) -> None:
    job = traced.add("-c", COUNTED)
    done = faulty(traced, f"{fault}:when=1+", of_queue(traced, ending), *words)
    assert injected(traced)
    assert refusal(done)["code"] in ("IO_ERROR", "NO_ACCESS", "NO_SPACE")
    assert jobs(traced) == [job]
    finish(traced)
    assert executions(traced) == [job]
    soundness.check(traced)


@pytest.mark.parametrize(
    ("words", "ever"),  # a worker would wait for ever
    [(("add", "true"), ""), (("add", "true"), "+"), (("status",), ""), (("status",), "+"), (("work", "--drain"), "")],
)
def test_a_read_that_fails_is_not_called_damage(traced: Spool, words: tuple[str, ...], ever: str) -> None:
    """SQLite says "malformed" of a page that it could not read (DESIGN, section 7)."""
    traced.add("true")
    for number in range(1, 20, 3):
        before = jobs(traced)
        # A second look may read the file by itself, and fails then too.
        done = faulty(traced, f"pread64,read:error=EIO:when={number}{ever}", of_queue(traced, ""), *words)
        if not injected(traced):
            return
        if done.returncode:
            assert refusal(done)["code"] == "IO_ERROR"
            assert b"malformed" not in done.stdout
        if words[0] == "add":
            agree(traced, done, before)
    pytest.fail("the sweep did not come to its end")


def test_an_add_that_reaches_the_file_size_limit_says_so(spool: Spool) -> None:
    """The real limit: of the process, not of the disk. Python ignores SIGXFSZ, so it is an error."""
    spool.add("true")
    done = ended(spool, [*spool.command, "add", "--json", "true"], limit=12000)
    told = refusal(done)
    assert "limit" in told["message"] + told["hint"]
    assert spool.add("true") == 2
    soundness.check(spool)


# --- the making of a queue ---


@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        ("fsync:error=EIO", "/../.."),
        ("fsync:error=EIO", "/.."),
        ("fdatasync:error=EIO", ".new"),
        ("fdatasync:error=EIO", ".new-wal"),
        ("pwrite64:error=EIO", ".new"),
        ("pwrite64:error=ENOSPC", ".new-wal"),
        ("openat:error=EMFILE", ".new"),
        ("mkdir:error=EDQUOT", ".d"),
        ("mkdir:error=ENOSPC", ".d/bell"),
        ("rename:error=EIO", ".new"),
    ],
)
def test_a_queue_that_cannot_be_made_is_not_there_and_can_be_made_later(traced: Spool, fault: str, ending: str) -> None:
    path = os.path.normpath(traced.place.path + ending)
    done = faulty(traced, f"{fault}:when=1+", [path], "add", "true")
    assert injected(traced)
    told = refusal(done)
    assert told["code"] == ("NO_SPACE" if "ENOSPC" in fault or "EDQUOT" in fault else "IO_ERROR")
    assert not os.path.exists(traced.place.path)
    assert traced.add("true") == 1
    assert sorted(os.listdir(os.path.dirname(traced.place.path))) == ["queue.db", "queue.db.d"]
    soundness.check(traced)
    assert told["hint"], f"nothing says what to do about: {told['message']}"


@pytest.mark.parametrize(
    ("fault", "ending", "step"),
    [
        ("fdatasync:error=EIO", ".new", 1),
        ("fdatasync:error=EIO", ".new-wal", 1),
        ("pwrite64:error=EIO", ".new", 7),
        ("ftruncate:error=EIO", ".new", 1),
    ],
)
def test_a_new_queue_appears_complete_and_on_disk_or_not_at_all(
    traced: Spool, fault: str, ending: str, step: int
) -> None:
    """Protects the making of the file aside. SQLite's close hides that the WAL could not be moved into the
    file, or that the file could not be synced."""
    for number in range(1, 100, step):
        shutil.rmtree(traced.folder / ".spoolctl", ignore_errors=True)
        done = faulty(traced, f"{fault}:when={number}", of_queue(traced, ending), "add", "true")
        agree(traced, done, [])
        if not injected(traced):
            return
        if done.returncode == 0:
            assert written_again(traced), f"call {number}: acknowledged, and not on disk"
            made = os.listdir(os.path.dirname(traced.place.path))
            assert sorted(made) == ["queue.db", "queue.db.d"], f"call {number}: published before it was complete"
    pytest.fail("the sweep did not come to its end")


def test_a_folder_whose_sync_failed_is_synced_before_an_add_is_acknowledged(traced: Spool) -> None:
    """Else a power cut takes the folder, with the acknowledged job in it."""
    for path in (traced.folder, traced.folder / ".spoolctl"):
        shutil.rmtree(traced.folder / ".spoolctl", ignore_errors=True)
        refusal(faulty(traced, "fsync:error=EIO:when=1", [str(path)], "add", "true"))
        assert injected(traced) == 1
        done = faulty(traced, "fsync:delay_enter=1", [str(path)], "add", "true")
        assert done.returncode == 0
        assert injected(traced), f"{path} was never synced"


# --- every single call ---


def sweep(spool: Spool, fault: str, step: int, anew: bool) -> None:
    """Let each `step`-th call of one `add` fail; after each, the answer and the queue agree."""
    if not anew:
        spool.add("true")
    for number in range(1, 500, step):
        if anew:
            shutil.rmtree(spool.folder / ".spoolctl", ignore_errors=True)
        before = jobs(spool)
        done = faulty(spool, f"{fault}:when={number}", [*everything(spool), str(spool.folder)], "add", "true")
        agree(spool, done, before)
        if not injected(spool):
            soundness.check(spool)
            return
        after = jobs(spool)
        assert spool.add("true") not in after, "and the next one is accepted"
    pytest.fail("the sweep did not come to its end")


CALLS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink", "rename")
STEPS = {("pwrite64", False): 7, ("pwrite64", True): 29, ("fdatasync", True): 3}
FULL = [("pwrite64", "ENOSPC"), ("pwrite64", "EDQUOT")]


@pytest.mark.parametrize("anew", [False, True], ids=["there", "anew"])
@pytest.mark.parametrize(("call", "error"), [*((call, "EIO") for call in CALLS), FULL[0]])
def test_whatever_call_of_an_add_fails_its_answer_is_true(traced: Spool, call: str, error: str, anew: bool) -> None:
    sweep(traced, f"{call}:error={error}", STEPS.get((call, anew), 1), anew)


@pytest.mark.torture
@pytest.mark.parametrize("anew", [False, True], ids=["there", "anew"])
@pytest.mark.parametrize(("call", "error"), [*((call, "EIO") for call in CALLS), *FULL])
def test_whatever_single_call_of_an_add_fails_its_answer_is_true(
    traced: Spool, call: str, error: str, anew: bool
) -> None:
    sweep(traced, f"{call}:error={error}", 1, anew)


# --- the worker ---

WORKER_FAULTS = [
    ("fdatasync:error=EIO", "I/O error"),
    ("pwrite64:error=EIO", "I/O error"),
    ("pwrite64:error=ENOSPC", "full"),
    ("pwrite64:error=EDQUOT", "I/O error"),
]


def complained_once(spool: Spool, words: str) -> None:
    """The worker has said what is wrong, and that it is over, once each."""
    assert log(spool).count("; waiting: ") == 1, log(spool)
    assert log(spool).count("can be written again") == 1, log(spool)
    assert words in log(spool)


@pytest.mark.parametrize(("fault", "words"), WORKER_FAULTS)
def test_a_worker_that_cannot_claim_says_so_once_starts_nothing_and_goes_on(
    traced: Spool, fault: str, words: str
) -> None:
    """Protects run/trouble.py and the doubt of the loop: after a COMMIT that failed it reads anew what it has."""
    worker = traced.worker("--jobs", "2")
    traced.until(lambda: "serves" in log(traced), "the worker")
    with trouble(traced, worker, fault, "-wal"):
        numbers = [traced.add("-c", COUNTED) for _ in range(3)]
        traced.until(lambda: "; waiting: " in log(traced), "the complaint")
        traced.until(lambda: injected(traced) >= 6, "some more attempts")
        assert executions(traced) == []
        assert [traced.state(job) for job in numbers] == ["queued"] * 3
        assert worker.poll() is None
    for job in numbers:
        traced.until_state(job, "done")
    complained_once(traced, words)
    assert sorted(executions(traced)) == numbers
    assert [(traced.job(job)["failures"], traced.job(job)["crashes"]) for job in numbers] == [(0, 0)] * 3
    soundness.check(traced)


@pytest.mark.parametrize(("fault", "words"), WORKER_FAULTS)
def test_a_worker_that_cannot_record_a_result_keeps_it_and_records_it_later(
    traced: Spool, fault: str, words: str
) -> None:
    job, waiting = traced.add("-c", LATER), traced.add("-c", COUNTED)
    worker = traced.worker()
    traced.until_state(job, "running")
    with trouble(traced, worker, fault, "-wal"):
        (traced.folder / "go").touch()
        traced.until(lambda: "; waiting: " in log(traced), "the complaint")
        traced.until(lambda: injected(traced) >= 6, "some more attempts")
        assert executions(traced) == [job]
    traced.until_state(waiting, "done")
    complained_once(traced, words)
    assert executions(traced) == [job, waiting]
    assert len(traced.attempts(job)) == 1
    assert log(traced).count("job 1 attempt 1 succeeded") == 1, log(traced)
    assert "too late" not in log(traced), log(traced)
    soundness.check(traced)


def test_a_claim_in_doubt_of_a_worker_that_is_killed_is_taken_back_and_runs_once(traced: Spool) -> None:
    """The claim whose sync failed may come back with SQLite's recovery; nobody has started it."""
    traced.env.update(FAST)
    worker = traced.worker()
    traced.until(lambda: "serves" in log(traced), "the worker")
    with trouble(traced, worker, "fdatasync:error=EIO", "-wal"):
        job = traced.add("-c", COUNTED)
        traced.until(lambda: "; waiting: " in log(traced), "the complaint")
        bury(worker)
    soundness.check(traced)
    finish(traced)
    assert (traced.state(job), executions(traced)) == ("done", [job])
    soundness.check(traced)


def test_a_worker_that_cannot_read_calls_nothing_damaged_and_goes_on(traced: Spool) -> None:
    worker = traced.worker()
    traced.until(lambda: "serves" in log(traced), "the worker")
    with trouble(traced, worker, "pread64:error=EIO", "", "-wal"):
        job = traced.add("-c", COUNTED)
        traced.until(lambda: "; waiting: " in log(traced), "the complaint")
        assert worker.poll() is None
    traced.until_state(job, "done")
    complained_once(traced, "")
    assert "malformed" not in log(traced)
    assert executions(traced) == [job]
    soundness.check(traced)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="sets a limit of another process with prlimit(2)")
def test_a_worker_that_reaches_the_file_size_limit_waits_until_it_is_raised(spool: Spool) -> None:
    job = spool.add("-c", LATER)
    worker = spool.worker()
    spool.until_state(job, "running")
    limits = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
    (spool.folder / "go").touch()
    spool.until(lambda: "; waiting: " in log(spool), "the complaint")
    assert spool.state(job) == "running"
    assert worker.poll() is None
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, limits)
    spool.until_state(job, "done")
    complained_once(spool, "I/O error")
    assert executions(spool) == [job]
    soundness.check(spool)


def test_a_command_that_reaches_the_file_size_limit_fails_by_itself(spool: Spool) -> None:
    greedy = spool.add("--max-retries", "0", "-c", "exec head -c 3000000 /dev/zero")
    modest = spool.add("-c", COUNTED)
    done = ended(spool, [*spool.command, "work", "--drain"], limit=1 << 20)
    assert done.returncode == 6, done.stderr
    assert (spool.job(greedy)["state"], spool.job(greedy)["signal"]) == ("dead", "SIGXFSZ")
    assert spool.attempts(greedy)[0]["stdout"]["bytes"] == 1 << 20
    assert executions(spool) == [modest]
    soundness.check(spool)


@pytest.mark.parametrize("ending", [".stdout", ".stderr", "/.."], ids=["stdout", "stderr", "folder"])
def test_a_result_whose_output_could_not_be_synced_says_so(traced: Spool, ending: str) -> None:
    job = traced.add("-c", f"{COUNTED}; echo out; echo err >&2")
    output = output_of(traced, job)
    path = os.path.dirname(output) if ending == "/.." else output + ending
    done = faulty(traced, "fsync:error=EIO", [path], "work", "--drain")
    assert (done.returncode, injected(traced)) == (0, 1)
    (attempt,) = traced.attempts(job)
    assert (traced.state(job), attempt["exit_code"]) == ("done", 0)
    assert "output could not be put on disk: Input/output error" in attempt["error"]
    assert traced.text("output", "--stdout", str(job)) == "out\n"
    assert executions(traced) == [job]
    soundness.check(traced)


def output_of(spool: Spool, job: int) -> str:
    """The path of the output of a job's first attempt, less the ending."""
    database = open_queue(spool.place, read_only=True)
    database.close()
    return spool.place.output(database.queue_id, job, 1)


@pytest.mark.parametrize(
    ("call", "error", "ending"),
    [
        ("mkdir", "EDQUOT", "/.."),
        ("openat", "ENOSPC", ".stdout"),
        ("openat", "EMFILE", ".stdout"),
        ("openat", "EIO", ".stderr"),
    ],
)
def test_a_job_whose_output_cannot_be_opened_is_put_back_and_not_charged(
    traced: Spool, call: str, error: str, ending: str
) -> None:
    """Protects the release of run/process.py: what is the machine's fault spends no budget."""
    job = traced.add("--max-retries", "0", "-c", COUNTED)
    output = output_of(traced, job)
    path = os.path.dirname(output) if ending == "/.." else output + ending
    done = faulty(traced, f"{call}:error={error}:when=1", [path], "work", "--drain")
    assert (done.returncode, injected(traced)) == (0, 1), done.stderr
    assert done.stderr.count(b"the machine refuses to start commands") == 1
    assert (traced.state(job), executions(traced)) == ("done", [job])
    assert traced.job(job)["failures"] == 0
    assert "released" in traced.events(job)
    soundness.check(traced)


def test_a_slow_disk_breaks_nothing(traced: Spool) -> None:
    """50 ms more for each sync of two workers and of those who submit: nobody gives up."""
    slow = "fsync,fdatasync:delay_enter=50000"
    numbers = [traced.add("-c", COUNTED) for _ in range(4)]
    command, direct = traced.command, traced.command
    traced.command = [*injection(traced, slow, everything(traced)), *command]
    for _ in range(2):
        traced.worker("--jobs", "2")
    traced.command = direct
    for _ in range(3):
        done = faulty(traced, slow, everything(traced), "add", "-c", COUNTED)
        numbers.append(json.loads(done.stdout)["job_id"])
    for job in numbers:
        traced.until_state(job, "done")
    assert sorted(executions(traced)) == numbers
    soundness.check(traced)


def test_a_disk_that_is_gone_under_a_worker_takes_nothing_that_was_acknowledged(
    disk: Disk, tmp_path: Path  # noqa: F811
) -> None:
    """Every access gives EIO, for good: the worker says so and starts nothing; a successor on the disk that has
    come back goes on."""
    spool = Spool(tmp_path)
    spool.env["SPOOLCTL_DB"] = str(disk.path / "queue.db")
    try:
        told = [spool.add("-c", LATER), *(spool.add("-c", COUNTED) for _ in range(3))]
        worker = spool.worker()
        spool.until(lambda: "attempt 1 started" in log(spool), "the job")
        kill_disk(disk)
        (tmp_path / "go").touch()
        spool.until(lambda: "; waiting: " in log(spool), "the complaint")
        for words in (("add", "--json", "true"), ("status", "--json")):
            assert refusal(spool.run(*words, code=None))["code"] == "IO_ERROR"
        assert (executions(spool), worker.poll()) == ([told[0]], None)
        assert log(spool).count("; waiting: ") == 1, log(spool)
        bury(worker)
        disk.unmount()
        assert disk.mount()
        finish(spool)
        states = spool.json("list")["jobs"]
        assert sorted((job["id"], job["state"]) for job in states) == [(job, "done") for job in told]
        # The first one's result had nowhere to go: it runs again, and no other does.
        assert sorted(executions(spool)) == sorted([told[0], *told])
    finally:
        spool.close()


def kill_disk(disk: Disk) -> None:  # noqa: F811
    """Shut it down with everything on it open: from now on it gives nothing but EIO."""
    descriptor = os.open(disk.path, os.O_RDONLY)
    fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_FLUSH))
    os.close(descriptor)


def drain_with(spool: Spool, fault: str) -> bool:
    """Let a worker meet a fault; whether it has. Nothing is lost or run twice, and its answer is true:
    `work --drain && deploy` relies on the exit status."""
    numbers = [spool.add("-c", COUNTED), spool.add("-c", COUNTED), spool.add("--max-retries", "0", "-c", FAILING)]
    ran = len(executions(spool))
    done = faulty(spool, fault, everything(spool), "work", "--drain", "--jobs", "2")
    met = injected(spool) > 0
    if done.returncode == 6:
        answer = json.loads(done.stdout)
        assert (answer["executed"], answer["ended"]["done"], answer["ended"]["dead"]) == (3, 2, 1), done.stderr
        assert b"too late" not in done.stderr, done.stderr
    else:
        refusal(done)
    soundness.check(spool)
    finish(spool)
    assert [spool.state(job) for job in numbers] == ["done", "done", "dead"]
    assert sorted(executions(spool)[ran:]) == numbers
    soundness.check(spool)
    return met


# Of two syncs in a row that fail the second is often the one of the checkpoint at the worker's close of the
# file: then the COMMIT that failed comes back with the recovery when it opens the file anew.
@pytest.mark.parametrize("when", ["3..4", "5..6", "6..7", "7..8"])
def test_whatever_sync_of_a_worker_fails_nothing_is_lost_or_run_twice(traced: Spool, when: str) -> None:
    assert drain_with(traced, f"fdatasync:error=EIO:when={when}")


@pytest.mark.parametrize(("error", "when"), [("EIO", "12"), ("ENOSPC", "30"), ("EIO", "40..60")])
def test_whatever_write_of_a_worker_fails_nothing_is_lost_or_run_twice(traced: Spool, error: str, when: str) -> None:
    assert drain_with(traced, f"pwrite64:error={error}:when={when}")


@pytest.mark.torture
@pytest.mark.parametrize(
    ("call", "error", "length"),
    [
        *((call, "EIO", 1) for call in (*CALLS, "pread64", "openat", "mkdir")),
        *((call, error, 1) for call, error in (*FULL, ("openat", "EMFILE"), ("mmap", "ENOMEM"))),
        *((call, "EIO", length) for call in ("pwrite64", "fdatasync") for length in (2, 6)),
    ],
)
def test_whatever_calls_of_a_worker_fail_nothing_is_lost_or_run_twice(
    traced: Spool, call: str, error: str, length: int
) -> None:
    """Each stretch of `length` calls, one after the other."""
    for number in range(1, 1000):
        if not drain_with(traced, f"{call}:error={error}:when={number}..{number + length - 1}"):
            return
    pytest.fail("the sweep did not come to its end")
