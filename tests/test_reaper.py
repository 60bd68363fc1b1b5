"""Recovery: a dead worker's job comes back, never beside its old processes, and no living worker is robbed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests import test_cancel
from tests.conftest import FAST, Spool, sql

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes through /proc")

PYTHON = [sys.executable, "-I", "-S", "-c"]
GATE = "echo run $SPOOLCTL_ATTEMPT; until [ -e go ]; do sleep 0.02; done"  # runs until the test opens the gate

# Three processes hold one lock until all are gone: the leader, a child in a session of its own and
# without its output, and one in a group of its own. An attempt that finds the lock taken, because
# another one still lives, leaves the file `overlap` and fails.
EXCLUSIVE = [
    *PYTHON,
    """
import fcntl, os, sys, time
attempt = os.environ["SPOOLCTL_ATTEMPT"]
lock = os.open("lock", os.O_CREAT | os.O_RDWR)
def leave():
    os.setsid()
    os.closerange(0, 3)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open("overlap", "w").close()
    sys.exit(99)
print("attempt", attempt, flush=True)
for name, escape in (("session", leave), ("group", lambda: os.setpgid(0, 0)), ("leader", int)):
    if name == "leader" or os.fork() == 0:
        escape()
        open(f"{name}.{attempt}", "w").close()
        break
while not os.path.exists("go." + attempt):
    time.sleep(0.02)
""",
]


def until_ready(spool: Spool, attempt: int) -> None:
    """All three processes of that attempt of EXCLUSIVE are where they want to be."""
    names = [f"{name}.{attempt}" for name in ("session", "group", "leader")]
    spool.until(lambda: all((spool.folder / name).exists() for name in names), f"the start of attempt {attempt}")


def no_overlap(spool: Spool) -> bool:
    return not (spool.folder / "overlap").exists()


def commands(spool: Spool) -> list[int]:
    """Every process that is neither this test's nor a worker."""
    started = {process.pid for process in spool.processes}
    return [pid for pid in spool.left_running() if pid not in started]


def state_letter(pid: int) -> str:
    """R, S, T, Z … as in proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def running_job(
    spool: Spool, *words: str, queue: str = "default", start: Callable[..., subprocess.Popen[bytes]] = Spool.worker
) -> tuple[int, subprocess.Popen[bytes]]:
    """A job that runs, its process recorded, and its worker, which serves only `queue`."""
    job = spool.add(*(words or ("-c", GATE)))
    process = start(spool, "--queue", queue)
    spool.until(lambda: sql(spool, "SELECT 1 FROM attempts WHERE job = ? AND pid IS NOT NULL", job), "the start")
    return job, process


def kill(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()


def kill_with_its_command(spool: Spool, worker: subprocess.Popen[bytes]) -> None:
    """Nothing of the attempt is left but what the queue says of it."""
    kill(worker)
    ((group,),) = sql(spool, "SELECT pid FROM attempts")
    os.killpg(group, signal.SIGKILL)
    spool.until(lambda: commands(spool) == [], "the end of the command")


def freeze(spool: Spool, worker: subprocess.Popen[bytes]) -> None:
    """SIGSTOP, but not while it holds the queue's write lock; then wait until its heartbeat is stale."""
    test_cancel.freeze(spool, worker)
    spool.until(lambda: heartbeat_age(spool, worker) > float(FAST["SPOOLCTL_TEST_REAP_THRESHOLD"]), "a stale heartbeat")


def heartbeat_age(spool: Spool, worker: subprocess.Popen[bytes]) -> float:
    return time.time() - sql(spool, "SELECT heartbeat_at FROM workers WHERE pid = ?", worker.pid)[0][0] / 1000


def lock_file(spool: Spool, worker_of: int) -> Path:
    """The lock file of the worker that runs that job."""
    (name,) = sql(spool, "SELECT w.lock FROM workers AS w JOIN jobs AS j ON j.worker = w.id WHERE j.id = ?", worker_of)[
        0
    ]
    return Path(spool.place.workers, name)


def assert_left_alone(spool: Spool, job: int) -> None:
    """A survivor has judged the worker of that job, and takes nothing from it. That it has is known
    by a canary: a worker that comes later, is killed, and is recovered from."""
    canary, worker = running_job(spool, "--queue", "canary", "--", "sleep", "100", queue="canary")
    kill(worker)
    spool.until_state(canary, "failed")
    assert not any(f"taking job {job} back" in log.read_text() for log in spool.folder.glob("worker-*.log"))
    assert (spool.state(job), spool.events(job)) == ("running", ["added", "claimed"])


def survivor(spool: Spool, *words: str, **env: str) -> subprocess.Popen[bytes]:
    """A worker that recovers, and runs nothing unless `words` name other queues: what it has put back stays."""
    return spool.worker(*(words or ("--queue", "none")), **{**FAST, **env})


def moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


# The whole cycle


def test_a_killed_workers_command_is_ended_before_its_job_runs_again_and_then_it_does(spool: Spool) -> None:
    """Protects the fence in run/reaper.py: without it the second attempt finds the lock taken by
    the orphans, of which one has left the session and one the group."""
    job = spool.add("--", *EXCLUSIVE)
    first = spool.worker("--worker-id", "first")
    until_ready(spool, 1)
    kill(first)
    assert len(commands(spool)) == 3
    survivor(spool, "--queue", "default", "--worker-id", "second")
    until_ready(spool, 2)
    (spool.folder / "go.2").touch()
    done = spool.until_state(job, "done", "dead")
    assert no_overlap(spool)
    assert (done["state"], done["crashes"], done["failures"]) == ("done", 1, 0)
    old, new = spool.attempts(job)
    assert (old["state"], old["failure_reason"], old["worker"]) == ("abandoned", "worker_crash", "first")
    assert (old["exit_code"], old["signal"], old["seconds"]) == (None, None, None)
    assert (new["state"], new["worker"]) == ("succeeded", "second")
    assert moment(done["due_at"]) - moment(old["finished_at"]) == pytest.approx(2, abs=0.002)
    assert moment(new["started_at"]) >= moment(done["due_at"])
    assert spool.events(job) == ["added", "claimed", "reaped", "claimed", "succeeded"]
    outputs = [spool.run("output", str(job), "--attempt", number).stdout for number in ("1", "2")]
    assert outputs == [b"attempt 1\n", b"attempt 2\n"]


def test_the_dead_worker_is_struck_off_the_roll(spool: Spool) -> None:
    job, worker = running_job(spool)
    file = lock_file(spool, job)
    kill(worker)
    heir = survivor(spool)
    spool.until(lambda: sql(spool, "SELECT pid FROM workers") == [(heir.pid,)], "the end of the dead worker's line")
    spool.until(lambda: not file.exists(), "the end of the dead worker's lock file")


def test_without_a_budget_for_crashes_the_job_is_dead(spool: Spool) -> None:
    job, worker = running_job(spool, "--max-crashes", "0", "--", "sleep", "100")
    kill(worker)
    answer = spool.json("work", "--drain", **FAST)
    assert answer["executed"] == 0  # its own runs decide its exit status, and it ran none
    dead = spool.job(job)
    assert (dead["state"], dead["failure_reason"], dead["crashes"], dead["failures"]) == ("dead", "worker_crash", 1, 0)
    assert spool.events(job) == ["added", "claimed", "reaped", "dead"]
    assert commands(spool) == []


def test_a_worker_whose_slots_are_all_busy_recovers_too(spool: Spool) -> None:
    """Protects recovery on every tick: a worker that looked only when it has room would not."""
    busy = spool.add("-c", GATE)
    survivor(spool, "--queue", "default")
    spool.until_state(busy, "running")
    lost, worker = running_job(spool, "--queue", "other", "--", "sleep", "100", queue="other")
    kill(worker)
    assert spool.until_state(lost, "failed")["crashes"] == 1
    assert spool.state(busy) == "running"


def test_a_start_that_was_never_recorded_hides_no_orphan(spool: Spool) -> None:
    """Protects the search by marker, which closes the window between spawn and record."""
    job, worker = running_job(spool, "--", *EXCLUSIVE)
    until_ready(spool, 1)
    kill(worker)
    sql(spool, "UPDATE attempts SET pid = NULL, pid_start = NULL")
    heir = survivor(spool)
    spool.until_state(job, "failed")
    assert spool.left_running() == [heir.pid]


def test_orphans_that_ignore_term_are_killed(spool: Spool) -> None:
    """Protects the KILL of the fence."""
    ignore = "trap '' TERM; echo > ready; while :; do sleep 100; done"
    job, worker = running_job(spool, "--", "sh", "-c", ignore)
    spool.until(lambda: (spool.folder / "ready").exists(), "the trap")
    kill(worker)
    heir = survivor(spool)
    spool.until_state(job, "failed")
    assert spool.left_running() == [heir.pid]


# Who is dead


def test_a_stopped_worker_is_never_robbed(spool: Spool) -> None:
    """Protects the lock as proof of life: its heartbeat is as stale as a dead worker's."""
    job, worker = running_job(spool)
    survivor(spool)
    freeze(spool, worker)
    assert_left_alone(spool, job)
    worker.send_signal(signal.SIGCONT)
    (spool.folder / "go").touch()
    spool.until_state(job, "done")
    assert len(spool.attempts(job)) == 1


def test_a_zombie_worker_is_dead(spool: Spool) -> None:
    """Protects against a test by pid, to which a zombie looks alive."""
    job, worker = running_job(spool)
    worker.kill()
    spool.until(lambda: state_letter(worker.pid) == "Z", "the zombie")
    survivor(spool)
    spool.until_state(job, "failed")
    assert state_letter(worker.pid) == "Z"


def test_a_worker_whose_pid_now_belongs_to_another_process_is_dead(spool: Spool) -> None:
    """Protects the lock as proof of death: by its pid alone the worker would look alive for ever."""
    job, worker = running_job(spool)
    kill(worker)
    sql(spool, "UPDATE workers SET pid = ?, pid_start = NULL", os.getpid())
    survivor(spool)
    assert spool.until_state(job, "failed")["crashes"] == 1


# Where the lock file is missing


def test_without_its_lock_file_a_living_worker_is_not_robbed_though_it_is_stopped(spool: Spool) -> None:
    """Protects the fallback's look at the process: a stale heartbeat alone proves nothing."""
    job, worker = running_job(spool)
    survivor(spool)
    lock_file(spool, job).unlink()
    freeze(spool, worker)
    assert_left_alone(spool, job)
    worker.send_signal(signal.SIGCONT)
    (spool.folder / "go").touch()
    spool.until_state(job, "done")


@pytest.mark.parametrize("pid", ["gone", "reused"])
def test_without_its_lock_file_a_dead_worker_is_recovered_once_its_heartbeat_is_stale(spool: Spool, pid: str) -> None:
    """Protects the fallback, and in it the start time: a pid that was given anew is not the worker."""
    job, worker = running_job(spool)
    kill(worker)
    lock_file(spool, job).unlink()
    if pid == "reused":
        sql(spool, "UPDATE workers SET pid = ?", os.getpid())
    survivor(spool, SPOOLCTL_TEST_REAP_THRESHOLD="3600")
    assert_left_alone(spool, job)  # as long as its heartbeat is fresh
    sql(
        spool,
        "UPDATE workers SET heartbeat_at = heartbeat_at - 3600000 WHERE name = ?",
        spool.attempts(job)[0]["worker"],
    )
    assert spool.until_state(job, "failed")["crashes"] == 1


# What is not the attempt's


def forge_group(spool: Spool, job: int, group: int) -> None:
    """As if the number of the attempt's group had been given to another process since."""
    sql(spool, "UPDATE attempts SET pid = ?, pid_start = pid_start - 1 WHERE job = ?", group, job)


def test_a_stranger_that_has_been_given_the_old_groups_number_is_left_alone(spool: Spool) -> None:
    """Protects the leader's start time: by the number alone the fence would kill a stranger."""
    job, worker = running_job(spool)
    kill_with_its_command(spool, worker)
    stranger = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        forge_group(spool, job, stranger.pid)
        survivor(spool)
        spool.until_state(job, "failed")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


# Other pid namespaces

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture
def namespaces() -> None:
    """A second pid namespace can be made here, else skip."""
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare --pid --mount-proc is not permitted here")


def inside(spool: Spool, *words: str) -> subprocess.Popen[bytes]:
    """A worker in a pid namespace of its own. What is returned is `unshare`; its end ends the namespace."""
    return start_as(spool, UNSHARE, *words)


def start_as(spool: Spool, wrapper: list[str], *words: str) -> subprocess.Popen[bytes]:
    tool, spool.command = spool.command, [*wrapper, *spool.command]
    process = spool.worker(*words, **FAST)
    spool.command = tool
    return process


def command_line(pid: int) -> bytes:
    """Its argv, each word ended by a NUL; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.usefixtures("namespaces")
def test_a_worker_in_another_pid_namespace_is_not_robbed_while_it_lives_and_recovered_when_it_dies(
    spool: Spool,
) -> None:
    """Protects the lock as proof across namespaces: the worker's pid there is 1, and 1 always lives here."""
    job, unshare = running_job(spool, start=inside)
    assert sql(spool, "SELECT pid FROM workers") == [(1,)]
    survivor(spool)
    assert_left_alone(spool, job)
    kill(unshare)
    assert spool.until_state(job, "failed")["crashes"] == 1


@pytest.mark.usefixtures("namespaces")
def test_an_orphan_that_cannot_be_seen_from_here_holds_its_job_until_it_is_gone(spool: Spool) -> None:
    """Protects the output's lock, the only witness across namespaces: without it the job would run twice."""

    def beside_another(spool: Spool, *words: str) -> subprocess.Popen[bytes]:
        """A worker that is not the first process of its namespace: its command can outlive it."""
        return start_as(spool, [*UNSHARE, "sh", "-c", '"$@" & while :; do sleep 0.1; done', "sh"], *words)

    job, _ = running_job(spool, "--", "sleep", "100", start=beside_another)
    (worker,) = (pid for pid in spool.left_running() if command_line(pid).startswith(os.fsencode(sys.executable)))
    os.kill(worker, signal.SIGKILL)
    inside(spool, "--queue", "none")
    log = spool.folder / "worker-1.log"
    spool.until(lambda: f"job {job} stays where it is" in log.read_text(), "the survivor's word")
    assert spool.state(job) == "running"
    assert any(f"job {job} cannot be taken back" in line for line in spool.json("status")["warnings"])
    (orphan,) = (pid for pid in spool.left_running() if command_line(pid) == b"sleep\x00100\0")
    os.kill(orphan, signal.SIGKILL)
    assert spool.until_state(job, "failed")["crashes"] == 1
