"""Alive, hung or dead: every combination of lock, heartbeat and process, and what the kernel says of a process."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spoolctl.errors import Fail
from spoolctl.run import liveness, proc
from spoolctl.run.liveness import ALIVE, DEAD, HUNG
from spoolctl.store.place import Place
from spoolctl.store.workers import Worker
from tests.conftest import DEADLINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes through /proc")

NOW = 1_800_000_000_000
THRESHOLD = 30.0
YEAR = 365 * 86_400_000  # ms
PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A queue's paths, with the one folder that lock files need."""
    place = Place(str(tmp_path / "queue.db"))
    os.makedirs(place.workers)
    return place


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until the test is over."""
    process = subprocess.Popen([*PYTHON, "import time; time.sleep(100)"])
    yield process
    process.kill()
    process.wait()


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def stat_of(pid: int) -> proc.Stat:
    stat = proc.read_stat(pid)
    assert stat is not None
    return stat


def worker_of(pid: int) -> Worker:
    """The line of a worker on this machine that is that process."""
    worker = liveness.identity()
    worker.pid, worker.pid_start = pid, liveness.start_time(pid)
    worker.lock, worker.name = "lock", "w"
    worker.heartbeat_at = NOW
    return worker


# The locks


@contextmanager
def held(place: Place, worker: Worker) -> Iterator[None]:
    descriptor = liveness.hold(place, worker.lock)
    yield
    os.close(descriptor)


@contextmanager
def free(place: Place, worker: Worker) -> Iterator[None]:
    os.close(liveness.hold(place, worker.lock))
    yield


@contextmanager
def missing(place: Place, worker: Worker) -> Iterator[None]:
    assert not os.path.exists(os.path.join(place.workers, worker.lock))
    yield


@contextmanager
def untestable(place: Place, worker: Worker) -> Iterator[None]:
    """A link is none of ours, wherever it leads: it is not followed."""
    target = os.path.join(place.folder, "target")
    open(target, "w").close()
    os.symlink(target, os.path.join(place.workers, worker.lock))
    yield


LOCKS = {lock.__name__: lock for lock in (held, free, missing, untestable)}


# The processes. Each makes a worker's line of one that lives.


def gone(worker: Worker) -> None:
    """It has ended and been waited for: no process has its number."""
    os.kill(worker.pid, signal.SIGKILL)
    os.waitpid(worker.pid, 0)
    assert proc.read_stat(worker.pid) is None


def gone_without_a_start(worker: Worker) -> None:
    gone(worker)
    worker.pid_start = None


def reused(worker: Worker) -> None:
    """Its number was given to a process that has started later."""
    assert worker.pid_start is not None
    worker.pid_start -= 1


def zombie(worker: Worker) -> None:
    """It has ended, and nobody has waited for it."""
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: stat_of(worker.pid).state == "Z", "the zombie")


def same(worker: Worker) -> None:
    assert worker.pid_start == stat_of(worker.pid).start


def same_without_a_start(worker: Worker) -> None:
    worker.pid_start = None


def stopped(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    until(lambda: stat_of(worker.pid).state == "T", "its stop")


def other_namespace(worker: Worker) -> None:
    gone(worker)
    worker.pid_ns = "pid:[1]"


def no_namespace(worker: Worker) -> None:
    gone(worker)
    worker.pid_ns = None


def other_boot(worker: Worker) -> None:
    """This machine has been started anew; its number means nothing, though a process has it."""
    worker.boot_id = "an earlier one"


def other_boot_of_another_host(worker: Worker) -> None:
    gone(worker)
    worker.boot_id, worker.host = "another machine's", "elsewhere"


def no_boot(worker: Worker) -> None:
    gone(worker)
    worker.boot_id = None


PROVED_GONE = {case.__name__: case for case in (gone, gone_without_a_start, reused, zombie, other_boot)}
INCONCLUSIVE = {
    case.__name__: case
    for case in (
        same,
        same_without_a_start,
        stopped,
        other_namespace,
        no_namespace,
        other_boot_of_another_host,
        no_boot,
    )
}
PROCESSES = {**PROVED_GONE, **INCONCLUSIVE}
AGES = {  # of the heartbeat, in ms
    "fresh": 0,
    "just fresh": 29_999,
    "just stale": 30_000,
    "stale": YEAR,
    "just fresh, from the future": -29_999,
    "from the future": -YEAR,
}


@needs_proc
@pytest.mark.parametrize(("lock", "process"), list(itertools.product(LOCKS, PROCESSES)))
def test_the_lock_decides_and_without_it_only_a_stale_heartbeat_of_a_process_that_is_proved_gone_is_death(
    place: Place, child: subprocess.Popen[bytes], lock: str, process: str
) -> None:
    worker = worker_of(child.pid)
    PROCESSES[process](worker)
    with LOCKS[lock](place, worker):
        judged = {age: liveness.judge(place, worker, NOW + ms, THRESHOLD) for age, ms in AGES.items()}
    for age, judgement in judged.items():
        fresh = "fresh" in age
        dead = lock == "free" or (lock in ("missing", "untestable") and not fresh and process in PROVED_GONE)
        assert judgement == (DEAD if dead else ALIVE if fresh else HUNG), age


@needs_proc
def test_this_very_process_is_alive_by_its_own_line(place: Place) -> None:
    me = worker_of(os.getpid())
    assert liveness.judge(place, me, NOW, THRESHOLD) == ALIVE
    assert liveness.judge(place, me, NOW + YEAR, THRESHOLD) == HUNG
    assert (me.host, me.boot_id) == (os.uname().nodename, liveness.boot_id())
    assert me.pid_ns == os.readlink("/proc/self/ns/pid")


@pytest.mark.parametrize("jump", [0, 1, -1, YEAR, -YEAR, 50 * YEAR, -50 * YEAR, -NOW, 2**62 - NOW])
def test_no_jump_of_the_wall_clock_makes_a_worker_dead_that_holds_its_lock(place: Place, jump: int) -> None:
    worker = worker_of(os.getpid())
    worker.pid_start = -2  # nor does anything else that could be believed of its process
    worker.boot_id = "another"
    with held(place, worker):
        judged = [liveness.judge(place, worker, NOW + jump, threshold) for threshold in (0.01, 30, 3600)]
    assert DEAD not in judged


@needs_proc
@pytest.mark.parametrize("jump", [YEAR, -YEAR, -NOW])
def test_no_jump_of_the_wall_clock_makes_a_worker_dead_whose_lock_file_is_missing_while_its_process_runs(
    place: Place, jump: int
) -> None:
    assert liveness.judge(place, worker_of(os.getpid()), NOW + jump, THRESHOLD) == HUNG


# The lock file


def test_a_lock_is_let_go_with_its_last_descriptor_and_not_before(place: Place) -> None:
    path = os.path.join(place.workers, "token")
    assert liveness.lock_held(path) is None
    descriptor = liveness.hold(place, "token")
    copy = os.dup(descriptor)
    assert liveness.lock_held(path) is True
    os.close(descriptor)
    assert liveness.lock_held(path) is True
    os.close(copy)
    assert liveness.lock_held(path) is False


def test_those_who_ask_do_not_see_each_other(place: Place) -> None:
    """Protects the shared lock of the question: with an exclusive one a dead worker would look alive."""
    path = os.path.join(place.workers, "token")
    os.close(liveness.hold(place, "token"))
    asking = os.open(path, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert liveness.lock_held(path) is False
    os.close(asking)


def test_a_command_does_not_inherit_its_workers_lock(place: Place) -> None:
    descriptor = liveness.hold(place, "token")
    path = os.path.join(place.workers, "token")
    assert os.stat(path).st_mode & 0o777 == 0o600
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as command:
        os.close(descriptor)
        assert liveness.lock_held(path) is False
        assert command.stdin
        command.stdin.close()


def test_two_workers_never_share_a_lock_file(place: Place) -> None:
    descriptor = liveness.hold(place, "token")
    with pytest.raises(Fail):
        liveness.hold(place, "token")
    os.close(descriptor)
    with pytest.raises(Fail):
        liveness.hold(place, "token")  # nor one that somebody has left


def test_the_name_of_a_worker_that_may_live_is_refused_and_that_of_a_dead_one_is_free(place: Place) -> None:
    twin = worker_of(os.getpid())
    with held(place, twin), pytest.raises(Fail) as caught:
        liveness.refuse_twin(place, [twin], NOW + YEAR, THRESHOLD)
    assert caught.value.code == "WORKER_EXISTS"
    assert str(os.getpid()) in caught.value.message
    liveness.refuse_twin(place, [twin], NOW, THRESHOLD)


# What the kernel says

RENAME = """
import sys
open("/proc/self/comm", "wb").write(sys.argv[1].encode())
print(flush=True)
sys.stdin.read()
"""


@needs_proc
@pytest.mark.parametrize("name", ["a) b", ") Z 1 2 (", "x) R 1 1 1 1", "(((", ")))", "a\n) b", " ", "caf\xe9"])
def test_a_process_may_be_called_anything(name: str) -> None:
    """Protects the search for the last parenthesis: what stands in the name must not be read as fields."""
    with subprocess.Popen([*PYTHON, RENAME, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        before = stat_of(process.pid).start
        process.stdout.readline()
        assert Path(f"/proc/{process.pid}/comm").read_bytes() == name.encode() + b"\n"
        stat = stat_of(process.pid)
        assert (stat.pid, stat.group, stat.threads, stat.start) == (process.pid, os.getpgrp(), 1, before)
        assert stat.state in "RSD"
        assert stat.alive
        assert process.pid in {living.pid for living in proc.living()}
        process.stdin.close()


@needs_proc
def test_a_script_with_an_odd_name_is_read_by_its_fields_too(tmp_path: Path) -> None:
    script = tmp_path / "a) b"
    script.write_text("#!/bin/sh\necho; read line\n")
    script.chmod(0o700)
    with subprocess.Popen([str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as run:
        assert run.stdin
        assert run.stdout
        run.stdout.readline()
        assert Path(f"/proc/{run.pid}/comm").read_text() == "a) b\n"
        assert (stat_of(run.pid).group, stat_of(run.pid).alive) == (run.pid, True)
        run.stdin.close()


@needs_proc
def test_a_zombie_is_not_alive_and_its_start_time_stays(child: subprocess.Popen[bytes]) -> None:
    before = stat_of(child.pid)
    child.kill()
    until(lambda: stat_of(child.pid).state == "Z", "the zombie")
    after = stat_of(child.pid)
    assert (before.alive, after.alive, after.start) == (True, False, before.start)
    assert not liveness.process_runs(child.pid, before.start)
    assert not liveness.process_runs(child.pid, None)
    assert child.pid not in {stat.pid for stat in proc.living()}
    child.wait()
    assert proc.read_stat(child.pid) is None
    assert not liveness.process_runs(child.pid, None)


# Its first thread ends and the kernel calls it a zombie, while the second goes on until it is told.
HEADLESS = """
import ctypes, sys, threading
def live():
    print(flush=True)
    sys.stdin.readline()
threading.Thread(target=live).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@needs_proc
def test_a_zombie_with_a_thread_that_goes_on_is_alive() -> None:
    """Protects the count of threads: the state letter alone would declare it dead."""
    command = [sys.executable, "-c", HEADLESS]
    env = {"PATH": os.environ["PATH"], "SPOOLCTL_MARKER": "mine"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        until(lambda: stat_of(process.pid).state == "Z" or process.poll() is not None, "the end of its first thread")
        assert process.poll() is None
        stat = stat_of(process.pid)
        assert (stat.alive, stat.threads) == (True, 2)
        assert proc.marker(stat) == "mine"
        assert liveness.process_runs(process.pid, stat.start)
        assert process.pid in {living.pid for living in proc.living()}
        process.kill()
        process.stdin.close()


@needs_proc
def test_a_process_that_is_not_there_has_no_line() -> None:
    for pid in (0, -1, 2**22 + 1, 2**31):
        assert proc.read_stat(pid) is None


@needs_proc
def test_only_a_suspended_process_is_called_stopped(child: subprocess.Popen[bytes]) -> None:
    worker = worker_of(child.pid)
    assert not liveness.is_stopped(worker)
    stopped(worker)
    assert liveness.is_stopped(worker)
    reused(worker)
    assert not liveness.is_stopped(worker)
    for field, other in (("boot_id", "another"), ("pid_ns", "pid:[1]")):
        elsewhere = worker_of(child.pid)
        setattr(elsewhere, field, other)
        assert not liveness.is_stopped(elsewhere)
