"""cancel and retry, most of all of jobs that run: nothing stays alive behind their answer, and no
job ever has two copies alive."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Spool, sql

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds processes through /proc")

PYTHON = [sys.executable, "-I", "-S", "-c"]
GATE = "until [ -e go ]; do sleep 0.02; done"  # a command that runs until the test opens the gate

# Two processes hold one lock until both are gone: the leader, which obeys TERM at once, and a child
# in a session of its own and without its output, which obeys only when the file `die.ATTEMPT` is
# there. An attempt that finds the lock taken, because another one still lives, leaves the file
# `overlap` and fails.
EXCLUSIVE = [
    *PYTHON,
    """
import fcntl, os, signal, sys, time
attempt = os.environ["SPOOLCTL_ATTEMPT"]
lock = os.open("lock", os.O_CREAT | os.O_RDWR)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open("overlap", "w").close()
    sys.exit(99)
def slowly(*_):
    while not os.path.exists("die." + attempt):
        time.sleep(0.02)
    os._exit(1)
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 3)
    signal.signal(signal.SIGTERM, slowly)
    open("ready." + attempt, "w").close()
while not os.path.exists("go." + attempt):
    time.sleep(0.02)
""",
]


# Makes a worker that waits without end before it sends KILL.
PATIENT = """
import sys
from spoolctl import limits
limits.TERM_GRACE = 1e6
from spoolctl.cli import main
sys.exit(main())
"""


def patient_worker(spool: Spool) -> None:
    tool, spool.command = spool.command, [sys.executable, "-c", PATIENT]
    spool.worker()
    spool.command = tool


def freeze(spool: Spool, worker: subprocess.Popen[bytes]) -> None:
    """SIGSTOP, but not while it holds the queue's write lock."""
    probe = sqlite3.connect(spool.place.path, timeout=0, isolation_level=None)

    def stopped() -> bool:
        worker.send_signal(signal.SIGSTOP)
        spool.until(lambda: state_letter(worker.pid) == "T", "its stop")
        try:
            probe.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            worker.send_signal(signal.SIGCONT)
            return False
        probe.execute("ROLLBACK")
        return True

    spool.until(stopped, "a stop outside of a transaction")
    probe.close()


def state_letter(pid: int) -> str:
    """R, S, T, Z … as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def let_die(spool: Spool, attempt: int) -> None:
    """The second process of that attempt of EXCLUSIVE may obey TERM."""
    (spool.folder / f"die.{attempt}").touch()


def until_ready(spool: Spool, attempt: int) -> None:
    """Both processes of that attempt of EXCLUSIVE hold the lock."""
    spool.until(lambda: (spool.folder / f"ready.{attempt}").exists(), f"the start of attempt {attempt}")
    assert not (spool.folder / "overlap").exists()


def finish(spool: Spool, job: int, attempt: int) -> None:
    (spool.folder / f"go.{attempt}").touch()
    assert spool.until_state(job, "done", "dead", "failed")["state"] == "done"
    assert not (spool.folder / "overlap").exists()


def commands(spool: Spool) -> list[int]:
    """Every process that is neither this test's nor a worker nor the tool itself."""
    started = {process.pid for process in spool.processes}
    return [pid for pid in spool.left_running() if pid not in started]


def refusal(spool: Spool, *words: str, code: int) -> str:
    """The code of the error with which a command line is refused."""
    found: str = spool.json(*words, code=code)["error"]["code"]
    return found


# What waits


def test_a_waiting_job_is_withdrawn_and_never_runs(spool: Spool) -> None:
    job, later = spool.add("--", "true"), spool.add("--after", "1h", "--", "true")
    assert spool.json("cancel", str(job), str(later))["was_running"] == []
    assert spool.json("work", "--drain")["executed"] == 0
    canceled = spool.job(job)
    assert (canceled["state"], canceled["failure_reason"], canceled["terminal"]) == ("canceled", "canceled", True)
    assert (spool.attempts(job), spool.events(job)) == ([], ["added", "canceled"])
    assert spool.state(later) == "canceled"


def test_a_job_that_waits_for_its_retry_is_withdrawn(spool: Spool) -> None:
    job = spool.add("--", "false")
    spool.run("work", "--once")
    assert spool.state(job) == "failed"
    spool.run("cancel", str(job))
    assert spool.json("work", "--drain")["executed"] == 0
    assert spool.state(job) == "canceled"


def test_a_finished_job_cannot_be_canceled(spool: Spool) -> None:
    done, dead, canceled = (
        spool.add("--", "true"),
        spool.add("--max-retries", "0", "--", "false"),
        spool.add("--", "true"),
    )
    spool.run("cancel", str(canceled))
    spool.run("work", "--drain", code=6)
    for job, state in ((done, "done"), (dead, "dead"), (canceled, "canceled")):
        assert refusal(spool, "cancel", "--running", "--yes", str(job), code=5) == "CONFLICT"
        assert spool.state(job) == state


def test_of_several_jobs_all_are_canceled_or_none(spool: Spool) -> None:
    waiting, finished = spool.add("--", "true"), spool.add("--priority", "9", "--", "true")
    spool.run("work", "--once")
    running = spool.add("--priority", "9", "-c", GATE)
    spool.worker()
    spool.until_state(running, "running")
    sql(spool, "UPDATE jobs SET ready = 0, due_at = due_at + 3600000 WHERE id = ?", waiting)
    for others, flags, code, said in (
        (["99"], [], 1, "NOT_FOUND"),
        ([str(finished)], [], 5, "CONFLICT"),
        ([str(running)], [], 2, "CONFIRM"),
        ([str(running), str(finished)], ["--running", "--yes"], 5, "CONFLICT"),
    ):
        assert refusal(spool, "cancel", *flags, str(waiting), *others, code=code) == said
        assert (spool.state(waiting), spool.state(running)) == ("queued", "running")
    assert not spool.job(running)["stopping"]
    assert "canceled" not in spool.events(waiting) + spool.events(running)


# What runs


@pytest.mark.parametrize("flags", [[], ["--running"], ["--yes"]], ids=["no flag", "--running", "--yes"])
def test_a_running_job_is_stopped_only_with_running_and_yes(spool: Spool, flags: list[str]) -> None:
    job = spool.add("-c", GATE)
    spool.worker()
    spool.until_state(job, "running")
    assert refusal(spool, "cancel", *flags, str(job), code=2) == "CONFIRM"
    assert not spool.job(job)["stopping"]
    (spool.folder / "go").touch()
    spool.until_state(job, "done")
    assert spool.events(job) == ["added", "claimed", "succeeded"]


def test_a_canceled_job_leaves_no_process_not_even_one_that_called_setsid(spool: Spool) -> None:
    """Protects the fence after a cancel: without it the child in its own session lives on."""
    job = spool.add("--", *EXCLUSIVE)
    spool.worker()
    until_ready(spool, 1)
    let_die(spool, 1)
    answer = spool.json("cancel", "--running", "--yes", str(job))
    assert commands(spool) == []
    assert (answer["canceled"], answer["was_running"]) == ([job], [job])
    canceled, (attempt,) = spool.job(job), spool.attempts(job)
    assert (canceled["state"], canceled["failure_reason"], canceled["failures"]) == ("canceled", "canceled", 0)
    assert (attempt["state"], attempt["failure_reason"]) == ("canceled", "canceled")
    assert (attempt["exit_code"], attempt["signal"]) == (None, "SIGTERM")
    assert spool.events(job) == ["added", "claimed", "canceled"]


def test_a_job_counts_as_running_until_its_processes_are_gone_and_cancel_then_retry_makes_no_second_copy(
    spool: Spool,
) -> None:
    """Protects that `canceled` is written only behind the fence: else the retry would overlap."""
    job = spool.add("--", *EXCLUSIVE)
    patient_worker(spool)
    until_ready(spool, 1)
    assert refusal(spool, "cancel", "--running", "--yes", "--wait", "0", str(job), code=4) == "TIMED_OUT"
    spool.until(lambda: len(commands(spool)) == 1, "the end of the leader")
    marked = spool.job(job)
    assert (marked["state"], marked["stopping"]) == ("running", True)
    assert refusal(spool, "retry", str(job), code=5) == "CONFLICT"
    let_die(spool, 1)
    spool.until_state(job, "canceled")
    spool.run("retry", str(job))
    until_ready(spool, 2)
    finish(spool, job, 2)
    assert [attempt["state"] for attempt in spool.attempts(job)] == ["canceled", "succeeded"]


def test_a_forced_retry_of_a_running_job_starts_it_again_only_when_the_old_attempt_is_gone(spool: Spool) -> None:
    """Protects the fence before a forced retry: without it the second attempt finds the lock taken."""
    job = spool.add("--", *EXCLUSIVE)
    patient_worker(spool)
    until_ready(spool, 1)
    sql(spool, "UPDATE jobs SET failures = 2, crashes = 2 WHERE id = ?", job)
    assert refusal(spool, "retry", str(job), code=5) == "CONFLICT"
    assert refusal(spool, "retry", "--force", "--wait", "0", str(job), code=4) == "TIMED_OUT"
    spool.until(lambda: len(commands(spool)) == 1, "the end of the leader")
    let_die(spool, 1)
    until_ready(spool, 2)
    again = spool.job(job)
    assert (again["state"], again["failures"], again["crashes"], again["stopping"]) == ("running", 0, 0, False)
    let_die(spool, 2)
    assert spool.text("retry", "--force", str(job)) == f"Job {job} requeued\n"
    until_ready(spool, 3)
    finish(spool, job, 3)
    assert [attempt["state"] for attempt in spool.attempts(job)] == ["canceled", "canceled", "succeeded"]
    assert spool.events(job) == ["added", *["claimed", "canceled", "retried"] * 2, "claimed", "succeeded"]


# Makes a worker that never hears of a cancel.
DEAF = """
import sys
from spoolctl.run.loop import Loop
Loop._look = lambda *_: None
from spoolctl.cli import main
sys.exit(main())
"""


def test_a_command_that_succeeds_before_its_worker_hears_of_the_cancel_has_succeeded(spool: Spool) -> None:
    """Protects the settle gate's rule for what was to be stopped and succeeded all the same."""
    job = spool.add("-c", GATE)
    tool, spool.command = spool.command, [sys.executable, "-c", DEAF]
    spool.worker()
    spool.command = tool
    spool.until_state(job, "running")
    cancel = subprocess.Popen(
        [*tool, "cancel", "--json", "--running", "--yes", str(job)],
        cwd=spool.folder,
        env=spool.env,
        stdout=subprocess.PIPE,
    )
    spool.processes.append(cancel)
    spool.until(lambda: spool.job(job)["stopping"], "the mark of the cancel")
    (spool.folder / "go").touch()
    answer, _ = cancel.communicate()
    assert (cancel.returncode, b"CONFLICT" in answer) == (5, True)
    assert spool.job(job)["state"] == "done"
    assert spool.attempts(job)[0]["state"] == "succeeded"


# Whose worker cannot stop it


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("words", [("cancel", "--running", "--yes"), ("retry", "--force")], ids=lambda words: words[0])
def test_cancel_and_forced_retry_themselves_end_the_job_of_a_worker_that_is_dead_or_stopped(
    spool: Spool, words: tuple[str, ...], number: int
) -> None:
    """Protects the fence in these verbs: the answer would be a time-out, or a lie."""
    job = spool.add("--", *EXCLUSIVE)
    worker = spool.worker()
    until_ready(spool, 1)
    spool.until(lambda: spool.attempts(job)[0]["pid"], "the record of the start")
    let_die(spool, 1)
    if number == signal.SIGSTOP:
        freeze(spool, worker)
    else:
        worker.kill()
    spool.run(*words, str(job))
    assert commands(spool) == []
    assert spool.state(job) == {"cancel": "canceled", "retry": "queued"}[words[0]]
    assert spool.attempts(job)[0]["state"] == "canceled"


def test_the_late_result_of_a_worker_that_has_lost_its_job_changes_nothing(spool: Spool) -> None:
    """Protects the settle gate's check of the owner: without it the stopped worker, once it goes on,
    settles an attempt that is another worker's."""
    job = spool.add("--", *EXCLUSIVE)
    stopped = spool.worker()
    until_ready(spool, 1)
    spool.until(lambda: spool.attempts(job)[0]["pid"], "the record of the start")
    let_die(spool, 1)
    freeze(spool, stopped)
    spool.run("cancel", "--running", "--yes", str(job))
    spool.run("retry", str(job))
    spool.worker("--worker-id", "other")
    until_ready(spool, 2)
    stopped.send_signal(signal.SIGCONT)
    log = spool.folder / "worker-0.log"
    spool.until(lambda: "discarded" in log.read_text(), "the worker's word that it has lost its job")
    running, (first, second) = spool.job(job), spool.attempts(job)
    assert (running["state"], first["state"], second["state"], second["worker"]) == (
        "running",
        "canceled",
        "running",
        "other",
    )
    finish(spool, job, 2)
