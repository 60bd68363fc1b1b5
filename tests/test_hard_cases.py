"""Cases that a hostile reader found: limits that are reached, signals from elsewhere, two verbs at
odds over one job, and processes that look like something they are not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spoolctl.run.bell import ring
from tests.conftest import FAST, Spool
from tests.test_cancel import DEAF, GATE, patient_worker
from tests.test_reaper import (
    PYTHON,
    commands,
    forge_group,
    kill,
    kill_with_its_command,
    running_job,
    state_letter,
    survivor,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes through /proc")
needs_prlimit = pytest.mark.skipif(not shutil.which("prlimit"), reason="limits a worker with prlimit")
needs_nohup = pytest.mark.skipif(not shutil.which("nohup"), reason="starts a worker with nohup")
needs_mount = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounts, which only root may")


def worker_as(spool: Spool, command: list[str], *words: str, **env: str) -> subprocess.Popen[bytes]:
    """A worker for which `command` stands in the tool's place."""
    tool, spool.command = spool.command, command
    process = spool.worker(*words, **env)
    spool.command = tool
    return process


def in_background(spool: Spool, *words: str) -> subprocess.Popen[bytes]:
    """The tool, under way; its stdout is a pipe."""
    process = subprocess.Popen([*spool.command, *words], cwd=spool.folder, env=spool.env, stdout=subprocess.PIPE)
    spool.processes.append(process)
    return process


def assert_serves(spool: Spool, worker: subprocess.Popen[bytes]) -> None:
    """The worker lives, and runs what is added now."""
    job = spool.add("--", "true")
    spool.until(lambda: worker.poll() is not None or spool.state(job) == "done", "a sign of life or of death")
    assert worker.poll() is None
    assert spool.state(job) == "done"


# Signals


@needs_prlimit
def test_a_limit_of_no_queued_signals_ends_no_worker(spool: Spool) -> None:
    """Protects the bell's signal: a real-time one that cannot be queued comes as SIGIO, which kills
    whoever does not expect it (fcntl(2), F_SETSIG)."""
    job = spool.add("--", "true")
    worker = worker_as(spool, ["prlimit", "--sigpending=0", *spool.command])
    spool.until_state(job, "done")
    assert_serves(spool, worker)


@needs_prlimit
def test_more_rings_than_can_be_queued_while_a_worker_is_stopped_do_not_end_it(spool: Spool) -> None:
    """Protects the same where the limit is an ordinary one, and is reached ring by ring."""
    job = spool.add("--", "true")
    worker = worker_as(spool, ["prlimit", "--sigpending=2000", *spool.command])
    spool.until_state(job, "done")
    worker.send_signal(signal.SIGSTOP)
    for _ in range(3000):
        ring(spool.place)
    worker.send_signal(signal.SIGCONT)
    assert_serves(spool, worker)


@needs_nohup
def test_a_worker_under_nohup_survives_a_hangup(spool: Spool) -> None:
    """Protects the inherited SIG_IGN, over which the worker must not set its own handler."""
    job = spool.add("-c", GATE)
    worker = worker_as(spool, ["nohup", *spool.command])
    spool.until_state(job, "running")
    worker.send_signal(signal.SIGHUP)
    (spool.folder / "go").touch()
    spool.until_state(job, "done")
    assert_serves(spool, worker)


def test_a_worker_that_was_started_with_blocked_signals_hears_them_all_the_same(spool: Spool) -> None:
    """Protects the unblocking in run/wakeup.py: the mask is inherited."""
    job = spool.add("--", "true")
    worker = subprocess.Popen(
        [*spool.command, "work"],
        cwd=spool.folder,
        env=spool.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD}),
    )
    spool.processes.append(worker)
    spool.until_state(job, "done")
    worker.terminate()
    spool.until(lambda: worker.poll() is not None, "the worker's end")


# Two verbs at odds


def test_a_forced_retry_runs_the_job_again_though_its_old_attempt_succeeded_meanwhile(spool: Spool) -> None:
    """Protects the wish for a retry in the settle gate: success must not swallow it."""
    job = spool.add("-c", GATE)
    worker_as(spool, [sys.executable, "-c", DEAF])
    spool.until_state(job, "running")
    retry = in_background(spool, "retry", "--json", "--force", str(job))
    spool.until(lambda: spool.job(job)["stopping"], "the mark of the retry")
    (spool.folder / "go").touch()
    answer, _ = retry.communicate()
    assert (retry.returncode, json.loads(answer)["retried"]) == (0, [job])
    spool.until(lambda: len(spool.attempts(job)) == 2, "the second attempt")


def test_cancel_does_not_claim_a_job_that_a_forced_retry_has_taken_over(spool: Spool) -> None:
    """Protects the look at the outcome: `canceled` would be a lie, the job runs again."""
    slow = "trap 'until [ -e die ]; do sleep 0.02; done; exit 1' TERM; touch up; while :; do sleep 0.02; done"
    job = spool.add("-c", slow)
    patient_worker(spool)
    spool.until(lambda: (spool.folder / "up").exists(), "the trap")
    cancel = in_background(spool, "cancel", "--json", "--running", "--yes", str(job))
    spool.until(lambda: spool.job(job)["stopping"], "the mark of the cancel")
    spool.run("retry", "--force", "--wait", "0", str(job), code=4)
    (spool.folder / "die").touch()
    answer, _ = cancel.communicate()
    assert (cancel.returncode, json.loads(answer)["error"]["code"]) == (5, "CONFLICT")
    assert spool.state(job) != "canceled"


# The queue's troubles

# Makes a worker whose first record of what it has reaped is followed by a locked queue.
LOCKED = """
import sys
from spoolctl.errors import Fail
from spoolctl.run.reaper import Reaper
real, calls = Reaper.told, []
def told(self, reaped, database):
    if reaped and not calls:
        calls.append(1)
        raise Fail("LOCKED", "injected: is locked")
    return real(self, reaped, database)
Reaper.told = told
from spoolctl.cli import main
sys.exit(main())
"""


@needs_proc
def test_a_lock_right_after_the_commit_strands_no_claimed_job(spool: Spool) -> None:
    """Protects the order after the COMMIT: what was claimed in it is spawned before anything can fail."""
    lost, worker = running_job(spool, "--", "sleep", "100")
    kill_with_its_command(spool, worker)
    other = spool.add("--queue", "other", "--", "true")
    worker_as(spool, [sys.executable, "-c", LOCKED], "--queue", "other", **FAST)
    spool.until_state(lost, "failed")
    spool.until_state(other, "done")


# Makes a worker that looks at its file only when in doubt, and whose first record after the file
# `swapped` is there fails.
IN_DOUBT = """
import os, sys
from spoolctl.errors import Fail
from spoolctl.run import loop, results
loop.TICK = 1e4
real = results.settle
def settle(*words):
    if os.path.exists("swapped") and not os.path.exists("failed-once"):
        open("failed-once", "w").close()
        raise Fail("IO_ERROR", "injected")
    return real(*words)
results.settle = settle
from spoolctl.cli import main
sys.exit(main())
"""


def test_a_worker_in_doubt_writes_into_no_other_queue(spool: Spool) -> None:
    """Protects the checks before a queue is opened anew: the other one at the same place has a job 1,
    attempt 1, run by a worker 1 as well."""
    old = spool.add("-c", GATE)
    worker = worker_as(spool, [sys.executable, "-c", IN_DOUBT])
    spool.until_state(old, "running")
    Path(spool.place.path).parent.rename(spool.folder / "aside")
    new = spool.add("--", "sleep", "100")
    spool.worker()
    spool.until_state(new, "running")
    (spool.folder / "swapped").touch()
    (spool.folder / "go").touch()
    spool.until(lambda: (spool.folder / "failed-once").exists(), "the doubt")
    spool.until(lambda: worker.poll() is not None, "the end of the worker whose queue is gone")
    assert "was removed or replaced" in (spool.folder / "worker-0.log").read_text()
    assert (spool.state(new), spool.events(new)) == ("running", ["added", "claimed"])


def test_a_reader_of_the_log_that_does_not_read_stops_no_work(spool: Spool) -> None:
    """Protects the worker's log: a write into a full pipe would block all that it does."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    os.read(reader, 4096)  # room for the first few lines only
    worker = subprocess.Popen([*spool.command, "work"], cwd=spool.folder, env=spool.env, stdout=writer, stderr=writer)
    spool.processes.append(worker)
    os.close(writer)
    jobs = [spool.add("--", "true") for _ in range(40)]
    spool.until_state(jobs[-1], "done")
    os.close(reader)


# Processes that look like something else


@needs_proc
def test_a_process_that_may_be_a_strangers_is_not_ended_and_holds_the_job_until_it_is_gone(spool: Spool) -> None:
    """Protects the fence's doubt: in the recorded group, without the marker, its leader gone, it may
    be the attempt's or a stranger's. To kill it and to overlook it are both wrong."""
    job, worker = running_job(spool)
    kill_with_its_command(spool, worker)
    leader = subprocess.Popen(["sh", "-c", "sleep 100 & echo $!"], start_new_session=True, stdout=subprocess.PIPE)
    with leader:
        assert leader.stdout is not None
        stranger = int(leader.stdout.readline())
    try:
        forge_group(spool, job, leader.pid)
        survivor(spool)
        said = f"process {stranger} may belong to it"
        warnings = spool.until(lambda: [line for line in spool.json("status")["warnings"] if said in line], "the word")
        assert all(line.startswith(f"job {job} ") for line in warnings)
        assert spool.state(job) == "running"
        assert state_letter(stranger) == "S"
    finally:
        os.kill(stranger, signal.SIGKILL)
    assert spool.until_state(job, "failed")["crashes"] == 1


# Leaves a daemon that has its own session and none of the output, and fails once the daemon has.
DAEMON = """
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.write(writer, b"x")
    time.sleep(100)
os.read(reader, 1)
os._exit(1)
"""


@needs_proc
def test_a_daemon_that_a_failed_command_leaves_is_ended_before_the_retry(spool: Spool) -> None:
    """Protects the look through all processes after a failure: neither group nor output shows it."""
    job = spool.add("--", *PYTHON, DAEMON)
    spool.worker()
    spool.until_state(job, "failed")
    assert commands(spool) == []


# A process whose first thread has ended, and which the kernel shows as a zombie, while another goes on.
HEADLESS = """
import ctypes, os, threading, time
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 1)
os.dup2(null, 2)
def live():
    open("alive", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
threading.Thread(target=live).start()
while not os.path.exists("alive"):
    time.sleep(0.02)
ctypes.CDLL(None).pthread_exit(None)
"""


def live_threads(pid: int) -> list[str]:
    """The threads of a process that have not ended; none where it is gone."""
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        try:
            if (thread / "stat").read_text().rpartition(") ")[2][0] not in "ZX":
                found.append(thread.name)
        except OSError:
            pass
    return found


@needs_proc
def test_an_orphan_whose_first_thread_has_ended_is_no_corpse(spool: Spool) -> None:
    """Protects the count of threads: by its state letter alone it would live on beside the retry."""
    job, worker = running_job(spool, "--", *PYTHON, HEADLESS)
    pid = spool.attempts(job)[0]["pid"]
    try:
        spool.until(lambda: state_letter(pid) == "Z", "the end of the first thread")
        kill(worker)
        assert live_threads(pid) != []
        survivor(spool)
        spool.until_state(job, "failed")
        assert live_threads(pid) == []
    finally:
        (spool.folder / "go").touch()


# Leaves a daemon without the marker that is known only by the output that it holds, and fails when
# the test says so. The pipe ends when the daemon has become another program.
HOLDER = """
import os, time
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.execve("/bin/sleep", ["sleep", "100"], {})
os.close(writer)
os.read(reader, 1)
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
os._exit(1)
"""

# Holds the lock of the file that it is given.
LOCKER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(100)
"""


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two folders, each a file system of its own that counts its inodes from the same number."""
    mounted = []
    try:
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            done = subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True, check=False)
            if done.returncode:
                pytest.skip("mount is not permitted here")
            mounted.append(folder)
        yield mounted[0], mounted[1]
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def same_inode(folder: Path, like: Path) -> Path:
    """A new file in `folder` with the inode number of `like`, which is on another file system."""
    wanted = like.stat().st_ino
    for number in range(5000):
        file = folder / str(number)
        file.touch()
        if file.stat().st_ino == wanted:
            return file
    pytest.skip("no inode number repeats on the file systems here")


@needs_proc
@needs_mount
def test_a_stranger_with_a_lock_on_a_file_of_another_file_system_is_left_alone(disks: tuple[Path, Path]) -> None:
    """Protects the comparison of devices: by the inode number alone the fence would kill a stranger."""
    spool = Spool(disks[0])
    try:
        job = spool.add("--", *PYTHON, HOLDER)
        spool.worker()
        spool.until(lambda: (spool.folder / "ready").exists(), "the daemon")
        file = same_inode(disks[1], Path(spool.attempts(job)[0]["stdout"]["path"]))
        stranger = subprocess.Popen([*PYTHON, LOCKER, str(file)], env=spool.env, stdout=subprocess.PIPE)
        spool.processes.append(stranger)
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"locked\n"
        (spool.folder / "go").touch()
        spool.until_state(job, "failed")
        assert stranger.poll() is None
    finally:
        spool.close()


# Programs and directories


def test_the_error_blames_the_program_though_it_is_called_like_the_directory(spool: Spool) -> None:
    """Protects the words of a refused start: the file name in the system's error does not tell which failed."""
    folder = spool.folder / "d"
    folder.mkdir()
    job = spool.add("--max-retries", "0", "--cwd", str(folder), "--", str(folder))
    spool.run("work", "--drain", code=6)
    assert not spool.job(job)["error"].startswith("cwd")


def test_a_relative_path_is_looked_up_in_each_jobs_own_directory(spool: Spool) -> None:
    """Protects the memory of where programs are: what holds in one directory is wrong in the next."""
    (spool.folder / "a" / "bin").mkdir(parents=True)
    for where, said in (("b/bin", "of b"), ("usual", "usual")):
        program = spool.folder / where / "greet"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho {said}\n")
        program.chmod(0o755)
    path = f"PATH=bin:{spool.folder}/usual"
    jobs = [spool.add("--cwd", cwd, "--env", path, "--max-retries", "0", "--", "greet") for cwd in ("a", "b", "a")]
    spool.run("work", "--drain")
    outputs = [spool.run("output", str(job)).stdout for job in jobs]
    assert outputs == [b"usual\n", b"of b\n", b"usual\n"]
