"""Starts commands and tells how they ended. The only place that spawns, signals a group or waits.

A command gets its own session, /dev/null as stdin, its output files as stdout and stderr, default
signals, and nothing else of the worker's: no descriptor, no mask, no ignored signal. Nothing sits
between it and its files, so its output survives the worker.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource  # noqa: F401 (os.wait4 would load it at its first call, when no file may be to be had)
import signal
import stat
import sys
import time

from spoolctl.store.folder import give, make_folder
from spoolctl.store.settle import Outcome
from spoolctl.text import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spoolctl.store.claim import Claimed

    Programs = dict[tuple[bytes, "bytes | None"], bytes]  # (name, PATH): where it is

# The machine's fault, not the job's: the attempt is put back and the worker holds back.
MACHINE_ERRORS = {
    *(errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT),
    *(errno.EROFS, errno.EIO),
}
DEFAULT_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
NEW = os.O_CREAT | os.O_EXCL


class NotStarted(Exception):
    """A command that could not be started. outcome: what that means for its attempt."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


def close_inherited() -> None:
    """Keep what this process was given by its parent (a `3>file`, make's job server) from the
    commands. Python's own descriptors are close-on-exec already (PEP 446)."""
    listing = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    for name in os.listdir(listing):
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                pass  # the listing's own, closed by now


def command_environment(base: dict[bytes, bytes], job: Claimed) -> dict[bytes, bytes]:
    """The worker's environment, the job's `--env` over it, and the variables that tell it which it is."""
    env = dict(base)
    if job.cwd is not None:
        env[b"PWD"] = job.cwd  # the logical path; a shell keeps it where it names the same folder
    env.update(job.env)
    env[b"SPOOLCTL_JOB_ID"] = b"%d" % job.job
    env[b"SPOOLCTL_ATTEMPT"] = b"%d" % job.attempt
    env[b"SPOOLCTL_QUEUE"] = job.queue.encode()
    env[b"SPOOLCTL_MARKER"] = job.marker.encode()
    env.pop(b"SPOOLCTL_KEY", None)
    if job.key is not None:
        env[b"SPOOLCTL_KEY"] = job.key.encode()
    return env


def spawn(job: Claimed, base: dict[bytes, bytes], home: int, output: str, known: Programs) -> int:
    """Start a job's command; its pid, which is also its process group and session.

    base: the worker's environment. home: a descriptor of the worker's directory. output: the path
    of its output files, less the ending. known: where programs were found lately. Raises NotStarted.
    """
    files: list[int] = []
    try:
        files.append(_create_first(output + ".stdout"))
        _lock(files[0])
        files.append(_create(output + ".stderr"))
        _empty(files)
    except OSError as error:
        _close(files)
        raise NotStarted(_machine(f"{decode(os.fsencode(error.filename or output))}: {error.strerror}")) from error
    try:
        _refuse_missing_secrets(job, base)
        return _start(job, command_environment(base, job), home, files, known)
    except (OSError, ValueError) as error:
        raise NotStarted(_refused(decode(job.argv[0]), error)) from error
    finally:
        _close(files)  # a lock held by the worker would say nothing about the command


def _refuse_missing_secrets(job: Claimed, base: dict[bytes, bytes]) -> None:
    """Without it the command would run with an empty token, say, which is worse than not at all."""
    for name in job.secret:
        if name not in base:
            said = f"--secret-env {decode(name)}: the worker has no such variable"
            raise NotStarted(Outcome("failed", "spawn_failed", said))


def _create_first(path: str) -> int:
    """The first file of an attempt; the folder is made where it is missing, once in a thousand jobs."""
    try:
        return _create(path)
    except FileNotFoundError:
        _make_folders(os.path.dirname(path))
        return _create(path)


def _create(path: str) -> int:
    """A new output file. What is there already is debris: of a claim that a power cut took back, or
    planted. A plain file is used, once its lock says that nobody writes it; anything else is moved away."""
    try:
        return _new(path)
    except FileExistsError:
        found = os.lstat(path)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return os.open(path, APPEND)
    os.rename(path, f"{path}.{os.urandom(4).hex()}.debris")
    return _new(path)


def _new(path: str) -> int:
    descriptor = os.open(path, APPEND | NEW, 0o600)
    give(descriptor, os.path.dirname(path))
    return descriptor


def _empty(files: list[int]) -> None:
    for descriptor in files:
        if os.fstat(descriptor).st_size:
            os.ftruncate(descriptor, 0)


def _lock(descriptor: int) -> None:
    """Lock a new output file. The lock is the open file's, so the command and all that inherit its
    stdout hold it. Somebody may just be trying it (`show`): that takes microseconds."""
    for _ in range(100):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.001)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _make_folders(path: str) -> None:
    """The folder of an output and the one above it. Not os.makedirs: that leaves the upper one to the umask."""
    for folder in (os.path.dirname(path), path):
        make_folder(folder)


def _start(job: Claimed, env: dict[bytes, bytes], home: int, files: list[int], known: Programs) -> int:
    _enter(job.cwd, home)
    try:
        return os.posix_spawn(
            _program(job.argv[0], env, known),
            job.argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, b"/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, files[0], 1),
                (os.POSIX_SPAWN_DUP2, files[1], 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=DEFAULT_SIGNALS,
        )
    finally:
        try:
            os.fchdir(home)  # so as not to keep somebody's folder busy
        except (OSError, ValueError):
            pass  # the command runs; whoever needs that directory will be told


def _enter(cwd: bytes | None, home: int) -> None:
    """Go to the job's directory: posix_spawn has none, and with one thread nobody notices."""
    try:
        if cwd is None:
            os.fchdir(home)
        else:
            os.chdir(cwd)
    except (OSError, ValueError) as error:
        if cwd is None:
            raise NotStarted(_machine("the worker's own directory is closed to it")) from error
        raise NotStarted(_refused(f"cwd {decode(cwd)}", error)) from error


def _program(name: bytes, env: dict[bytes, bytes], known: Programs) -> bytes:
    """Where `name` is, by the PATH that the command will have. Looked up here: trying each folder
    with posix_spawn would cost a process each."""
    if b"/" in name:
        return name
    key = (name, env.get(b"PATH"))
    if key in known and os.access(known[key], os.X_OK):
        return known[key]
    found = _search(name, env)
    if all(os.path.isabs(folder) for folder in _folders(env)):
        known[key] = found  # by a relative folder each working directory would have its own
    return found


def _search(name: bytes, env: dict[bytes, bytes]) -> bytes:
    refused = errno.ENOENT
    for folder in _folders(env):
        path = os.path.join(folder, name)
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and os.access(path, os.X_OK):
            return path
        refused = errno.EACCES
    raise OSError(refused, os.strerror(refused), name)


def _folders(env: dict[bytes, bytes]) -> list[bytes]:
    """Where programs are looked for; an empty one is the command's directory. `os.get_exec_path`
    would load a module for it, when perhaps no file may be opened any more."""
    return env.get(b"PATH", os.fsencode(os.defpath)).split(b":")


def _refused(what: str, error: OSError | ValueError) -> Outcome:
    """Whose fault it is that a command could not be started, and the words for it."""
    number = getattr(error, "errno", None)
    said = f"{what}: {os.strerror(number) if number else error}"
    return _machine(said) if number in MACHINE_ERRORS else Outcome("failed", "spawn_failed", said)


def _machine(said: str) -> Outcome:
    return Outcome("released", "spawn_failed", said)


def _close(files: list[int]) -> None:
    for descriptor in files:
        os.close(descriptor)


def ended(pid: int) -> Outcome | None:
    """How a child ended, with what it used; None while it runs. It is a zombie no more after that."""
    try:
        found, status, used = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:  # somebody in this process has waited for it: a defect
        return Outcome("failed", "process_exit", "its exit status was lost")
    if found == 0:
        return None
    outcome = Outcome("succeeded")
    if os.WIFSIGNALED(status):
        outcome = Outcome("failed", "process_exit")
        outcome.signal = signal_name(os.WTERMSIG(status))
    else:
        code = os.WEXITSTATUS(status)
        outcome = Outcome("failed", "process_exit") if code else outcome
        outcome.exit_code = code
    outcome.user_seconds, outcome.system_seconds = used.ru_utime, used.ru_stime
    # KiB on Linux, bytes on macOS: getrusage(2) of each.
    outcome.peak_memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return outcome


def readable(path: str) -> bool:
    """Whether a file can be read to its end. In a child: to open and close the queue file in this process
    would drop the locks that it holds through SQLite (fcntl(2))."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def signal_name(number: int) -> str:
    """`SIGKILL`; `SIGRTMIN+3` and the like for the real-time ones that have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        first = getattr(signal, "SIGRTMIN", number)  # macOS has none
        return f"SIGRTMIN+{number - first}" if number > first else f"SIG{number}"


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the group of a child that has not been waited for: its number is not free."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # macOS says EPERM for a group of zombies


def group_exists(pid: int) -> bool:
    """Whether anything is left of a process group; one system call."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
