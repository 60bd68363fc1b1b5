"""Proof of life and of death.

A worker holds an exclusive flock on its file in `workers/` for as long as it lives; the kernel
lets go when, and only when, the process is gone (flock(2)). Lock free = dead, whatever became of
its pid: pid reuse, renamed programs, zombies and other pid namespaces cannot deceive it. Only where
that file is missing or cannot be tested does the older protocol decide: heartbeat stale, and the
process gone or another one. Inconclusive always means: leave it alone.
"""

from __future__ import annotations

import fcntl
import os

from spoolctl.errors import Fail
from spoolctl.run.proc import not_here, read_stat
from spoolctl.store.explain import from_system
from spoolctl.store.workers import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.place import Place

ALIVE, HUNG, DEAD = "alive", "hung", "dead"
STATES = {
    ALIVE: "it lives and its heartbeat is fresh",
    HUNG: "it lives, but its heartbeat is stale; never reaped, kill it if it is stuck",
    DEAD: "it is gone; its jobs are taken back by the next worker",
}


def identity() -> Worker:
    """This process, with everything that tells it from any other, before it is on the roll."""
    me = Worker()
    me.pid = os.getpid()
    me.pid_start = start_time(me.pid)
    me.boot_id = boot_id()
    me.pid_ns = pid_namespace()
    me.host = os.uname().nodename
    return me


def hold(place: Place, token: str) -> int:
    """Create and lock the file `token` in `workers/`; the descriptor that holds the lock.

    It is close-on-exec: a command that inherited it would keep its dead worker alive.
    """
    path = os.path.join(place.workers, token)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise from_system(error, path) from error
    return descriptor


def forget(place: Place, worker: Worker) -> None:
    """Remove the lock file of a worker that is off the roll."""
    try:
        os.unlink(os.path.join(place.workers, worker.lock))
    except OSError:
        pass  # a peer was faster


def judge(place: Place, worker: Worker, now: int, threshold: float) -> str:
    """ALIVE, HUNG or DEAD. now: ms since 1970. threshold: seconds until a heartbeat is stale."""
    fresh = abs(now - worker.heartbeat_at) < threshold * 1000
    try:
        held = lock_held(os.path.join(place.workers, worker.lock))
    except OSError:
        return ALIVE  # inconclusive
    if held is False:
        return DEAD
    if held is None and not fresh and _process_gone(worker):
        return DEAD
    return ALIVE if fresh else HUNG


def lock_held(path: str) -> bool | None:
    """Whether somebody holds the flock of that file; None where that cannot be told. Raises OSError
    where this process can open no more files.

    A shared lock is tried, so that two who ask at the same moment do not see each other.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        not_here(error)
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _process_gone(worker: Worker) -> bool:
    """Proof, without the lock, that the worker's process does not run; False is inconclusive."""
    if worker.boot_id is None or boot_id() is None:
        return False
    if worker.boot_id != boot_id():
        # Another boot of this machine ended it; of another machine nothing is known.
        return worker.host == os.uname().nodename
    if worker.pid_ns != pid_namespace():
        return False  # its pid means something else here
    return not process_runs(worker.pid, worker.pid_start)


def is_stopped(worker: Worker) -> bool:
    """Whether the worker's process is suspended (SIGSTOP, a debugger); False where it cannot be told."""
    if worker.boot_id != boot_id() or worker.pid_ns != pid_namespace():
        return False
    stat = read_stat(worker.pid)
    return stat is not None and stat.state in "Tt" and worker.pid_start in (None, stat.start)


def process_runs(pid: int, started: int | None) -> bool:
    """Whether that very process runs: same pid, same start time (None: unknown), no zombie."""
    stat = read_stat(pid)
    if stat is None:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            pass
        return True  # it exists, and nothing more can be told
    return stat.alive and (started is None or stat.start == started)


def start_time(pid: int) -> int | None:
    """The kernel's start time of a process, in ticks since boot; None where it cannot be told."""
    stat = read_stat(pid)
    return stat.start if stat else None


def boot_id() -> str | None:
    """Unlike at any other boot; None where the system tells none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None


def pid_namespace() -> str | None:
    """The namespace in which this process's pids mean something; None where there is only one."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def refuse_twin(place: Place, twins: list[Worker], now: int, threshold: float) -> None:
    """Raise Fail("WORKER_EXISTS") where one of the workers of the wanted name is not dead."""
    for twin in twins:
        if judge(place, twin, now, threshold) != DEAD:
            raise Fail("WORKER_EXISTS", f"--worker-id {twin.name}: process {twin.pid} has this id", "choose another")
