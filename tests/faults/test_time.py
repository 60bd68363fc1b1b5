"""Time: the wall clock is set, zones and summers change, machines are suspended and started anew.

The wall clock is moved only for what a test has started, by a small library that is loaded before
the C library; its monotonic clock goes on. What is measured here is measured by the monotonic one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import FAST, Spool, sql
from tests.crash import soundness
from tests.test_clock import JUMP_C

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Process = subprocess.Popen[bytes]

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes through /proc")

HOUR = 3600
DAY = 24 * HOUR
GATE = "until [ -e go ]; do sleep 0.02; done"  # a command that runs until the test opens the gate
# Of its process group and nothing else: its environment says nothing, and its output it has closed.
GROUP_ONLY = ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", "exec >/dev/null 2>&1; echo $$ >orphan; sleep 100; :"]
CENTRAL_EUROPE = "CET-1CEST,M3.5.0,M10.5.0/3"  # by rule, as not every machine has a table of zones


class Clock:
    """A wall clock that can be set. Started with `env`, a process and what it starts go by it."""

    def __init__(self, library: Path, offset: Path) -> None:
        self.offset = offset
        self.env = {"LD_PRELOAD": str(library), "JUMP": str(offset)}
        self.move(0)

    def move(self, seconds: int) -> None:
        """Put it that far off the true one, at once: nobody sees a file that is half written."""
        fresh = self.offset.with_name(f"{self.offset.name}.new")
        fresh.write_text(str(seconds))
        fresh.replace(self.offset)

    def set(self, moment: int) -> None:
        """Let it show that second since 1970, and go on from there."""
        self.move(moment - int(time.time()))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What moves the wall clock of a process that loads it."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, for a library that moves the wall clock of a process")
    folder = tmp_path_factory.mktemp("jump")
    (folder / "jump.c").write_text(JUMP_C)
    build = ["gcc", "-O1", "-w", "-shared", "-fPIC", "-o", "jump.so", "jump.c", "-ldl"]
    subprocess.run(build, cwd=folder, check=True)
    return folder / "jump.so"


@pytest.fixture
def clocks(library: Path, tmp_path: Path) -> list[Clock]:
    """Two wall clocks, each apart from the other."""
    return [Clock(library, tmp_path / f"clock.{number}") for number in range(2)]


@pytest.fixture
def clock(clocks: list[Clock]) -> Clock:
    return clocks[0]


def log(spool: Spool, number: int = 0) -> str:
    return (spool.folder / f"worker-{number}.log").read_text()


def running(spool: Spool, *words: str, **env: str) -> tuple[int, Process]:
    """A job that runs until the gate is opened, and its worker, which `words` start."""
    queue = words[words.index("--queue") + 1] if "--queue" in words else "default"
    job = spool.add("--queue", queue, "-c", GATE)
    worker = spool.worker(*words, **{**FAST, **env})
    until_recorded(spool, job)
    return job, worker


def until_recorded(spool: Spool, job: int) -> None:
    """The job runs, and the queue knows its process."""
    spool.until(lambda: sql(spool, "SELECT 1 FROM attempts WHERE job = ? AND pid IS NOT NULL", job), "the start")


def start_in(spool: Spool, wrapper: list[str], *words: str, **env: str) -> Process:
    """A worker behind a wrapper; what is returned is the wrapper's process."""
    tool, spool.command = spool.command, [*wrapper, *spool.command]
    try:
        return spool.worker(*words, **{**FAST, **env})
    finally:
        spool.command = tool


def go_on_unharmed(spool: Spool, jobs: Sequence[int]) -> None:
    """Neither of two workers has robbed the other, and each job ends in its only attempt."""
    not_robbed(spool, *jobs, by=(0, 1))
    open_gate(spool)
    for job in jobs:
        assert spool.until_state(job, "done")["crashes"] == 0
        assert len(spool.attempts(job)) == 1
    soundness.check(spool)


def open_gate(spool: Spool) -> None:
    (spool.folder / "go").touch()


def kill(worker: Process) -> None:
    worker.kill()
    worker.wait()


def kill_with_its_command(spool: Spool, worker: Process, job: int) -> None:
    """Nothing of the attempt is left but what the queue says of it."""
    kill(worker)
    ((group,),) = sql(spool, "SELECT pid FROM attempts WHERE job = ?", job)
    os.killpg(group, signal.SIGKILL)
    spool.until(lambda: not runs(group), "the end of the command")


def stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state letter on; None where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None


def runs(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found[0] not in "ZX"


def heartbeat_age(spool: Spool) -> float:
    """Seconds by the true clock since the test's first worker has beaten."""
    beat: float = sql(spool, "SELECT heartbeat_at FROM workers ORDER BY id")[0][0]
    return time.time() - beat / 1000


def without_lock_files(spool: Spool) -> None:
    """Then the older protocol decides: heartbeat, pid, start time, boot."""
    for file in Path(spool.place.workers).iterdir():
        file.unlink()


def have_looked(spool: Spool, *numbers: int) -> bool:
    """Whether all of the test's workers with those numbers have judged their peers. Told by a canary:
    a worker that comes and is killed, whose command takes its time to end, so that each of them finds it."""
    slow = "trap 'until [ -e let.go ]; do sleep 0.02; done; exit' TERM; while :; do sleep 0.02; done"
    canary = spool.add("--queue", "canary", "--max-crashes", "0", "-c", slow)
    worker = spool.worker("--queue", "canary", **FAST)
    until_recorded(spool, canary)
    kill(worker)

    def told() -> bool:
        return all(f"taking job {canary} back" in log(spool, number) for number in numbers)

    spool.until(lambda: told() or spool.state(canary) == "dead", "the look of the peers")
    (spool.folder / "let.go").touch()
    spool.until_state(canary, "dead")
    (spool.folder / "let.go").unlink()
    return told()


def not_robbed(spool: Spool, *jobs: int, by: tuple[int, ...] = (1,)) -> None:
    """Those of the test's workers have looked at all the others, and left these jobs where they are."""
    spool.until(lambda: have_looked(spool, *by), "all the peers have looked")
    for job in jobs:
        assert not any(f"taking job {job} back" in log(spool, number) for number in by)
        assert spool.state(job) == "running"


# A command runs


@pytest.mark.parametrize("jump", [-3 * DAY, 3 * DAY])
def test_how_long_a_command_took_and_when_its_time_is_over_is_no_matter_of_the_wall_clock(
    spool: Spool, clock: Clock, jump: int
) -> None:
    """Protects the monotonic clock of run/attempt.py. By the wall clock the timeout would come at once,
    or days later, and the duration be days, or less than nothing."""
    begun = time.monotonic()
    slow = spool.add("--timeout", "1", "--max-retries", "0", "--", "sleep", "100")
    gated, _ = running(spool, "--jobs", "2", **clock.env)
    seen = time.monotonic()
    clock.move(jump)
    spool.until(lambda: heartbeat_age(spool) == pytest.approx(-jump, abs=HOUR), "a heartbeat by the new clock")
    at_least = time.monotonic() - seen
    open_gate(spool)
    spool.until_state(gated, "done")
    assert at_least <= spool.attempts(gated)[0]["seconds"] <= time.monotonic() - begun
    assert spool.until_state(slow, "dead")["failure_reason"] == "timeout"
    assert 1 <= spool.attempts(slow)[0]["seconds"] <= time.monotonic() - begun


def test_a_clock_that_is_set_to_and_fro_all_the_time_changes_no_timeout_and_loses_no_job(
    spool: Spool, clock: Clock
) -> None:
    begun = time.monotonic()
    slow = spool.add("--timeout", "2", "--max-retries", "0", "--", "sleep", "100")
    again = spool.add("-c", "[ $SPOOLCTL_ATTEMPT = 2 ]")
    spool.worker("--jobs", "2", **FAST, **clock.env)
    to_and_fro = itertools.cycle([-5 * HOUR, 5 * HOUR])

    def both_are_over() -> bool:
        clock.move(next(to_and_fro))
        return [spool.state(slow), spool.state(again)] == ["dead", "done"]

    spool.until(both_are_over, "the end of both")
    assert 2 <= spool.attempts(slow)[0]["seconds"] <= time.monotonic() - begun
    assert [attempt["state"] for attempt in spool.attempts(again)] == ["failed", "succeeded"]
    soundness.check(spool)


# A retry waits, a job is delayed


def test_set_back_while_nobody_worked_the_clock_holds_no_retry_and_a_delayed_job_keeps_its_own_time(
    spool: Spool, clock: Clock
) -> None:
    """Protects the first look of Loop._mind_the_clock: a worker that starts knows no earlier time. And that
    only backoffs are put right: `--at` and `--after` mean a time that people have chosen."""
    retried = spool.add("-c", "[ $SPOOLCTL_ATTEMPT = 2 ]")
    delayed = spool.add("--after", "1h", "--", "true")
    due = spool.job(delayed)["due_at"]
    spool.run("work", "--once", code=0, stdin=b"", **clock.env)
    clock.move(-3 * DAY)
    spool.worker(**FAST, **clock.env)
    spool.until_state(retried, "done")
    assert (spool.state(delayed), spool.job(delayed)["due_at"]) == ("queued", due)
    clock.move(2 * HOUR)
    spool.until_state(delayed, "done")


def test_a_retry_in_a_queue_that_is_served_elsewhere_is_put_right_too(spool: Spool, clock: Clock) -> None:
    """The one that minds the clock need not be the one that runs the job, nor have any room."""
    job = spool.add("-c", "[ $SPOOLCTL_ATTEMPT = 2 ]")
    spool.run("work", "--once", code=0, stdin=b"", **clock.env)
    gated, _ = running(spool, "--queue", "other", **clock.env)
    clock.move(-3 * DAY)
    spool.until(lambda: due_in(spool, job) < -2 * DAY, "a due time by the new clock")
    open_gate(spool)
    spool.until_state(gated, "done")
    assert spool.json("work", "--drain", code=0, **FAST, **clock.env)["executed"] == 1
    assert spool.state(job) == "done"


def due_in(spool: Spool, job: int) -> float:
    """Seconds by the true clock until the job is due."""
    due: float = sql(spool, "SELECT due_at FROM jobs WHERE id = ?", job)[0][0]
    return due / 1000 - time.time()


def test_a_delayed_job_and_a_waiting_retry_run_at_once_when_the_clock_is_set_past_their_time(
    spool: Spool, clock: Clock
) -> None:
    """Protects the promotion in store/claim.py, by the clock as it is now: nobody sleeps until a moment
    that was computed by an earlier one."""
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 20 * HOUR))
    delayed = [spool.add("--after", "20h", "--", "true"), spool.add("--at", later, "--", "true")]
    retried = spool.add("-c", "[ $SPOOLCTL_ATTEMPT = 2 ]")
    spool.run("work", "--once")
    sql(spool, "UPDATE jobs SET failures = 5, max_retries = 9, due_at = due_at + 58000 WHERE id = ?", retried)
    canary = spool.add("--", "true")
    spool.worker(**FAST, **clock.env)
    spool.until_state(canary, "done")
    assert [spool.state(job) for job in delayed] == ["queued"] * 2
    clock.move(DAY)
    for job in (*delayed, retried):
        spool.until_state(job, "done")


def test_what_was_added_or_put_back_by_a_clock_ahead_runs_at_once_after_it_was_put_right(
    spool: Spool, clock: Clock
) -> None:
    """Protects `ready`: what is due when it is submitted is not asked for its time again."""
    canceled = spool.add("--", "true")
    spool.run("cancel", str(canceled))
    clock.move(3 * DAY)
    added = spool.add("--", "true", **clock.env)
    spool.run("retry", str(canceled), code=0, stdin=b"", **clock.env)
    clock.move(0)
    answer = spool.json("work", "--drain", code=0, **FAST, **clock.env)
    assert (answer["executed"], answer["settled"]) == (2, True)
    assert [spool.state(job) for job in (added, canceled)] == ["done"] * 2


# Two workers watch each other


@pytest.mark.parametrize("lock_files", ["with lock files", "without"])
def test_no_living_worker_is_robbed_by_a_peer_whose_clock_is_days_off(
    spool: Spool, clocks: list[Clock], lock_files: str
) -> None:
    """Protects the lock, and without lock files the look at the process: by heartbeats alone each of the
    two would take the other for dead, whichever way their clocks disagree."""
    jobs = [running(spool, "--queue", f"q{n}", **clock.env)[0] for n, clock in enumerate(clocks)]
    if lock_files == "without":
        without_lock_files(spool)
    clocks[0].move(-3 * DAY)
    clocks[1].move(3 * DAY)
    workers = "SELECT heartbeat_at / 1000 FROM workers ORDER BY id"
    spool.until(
        lambda: sorted(round((beat - time.time()) / DAY) for (beat,) in sql(spool, workers)) == [-3, 3],
        "a heartbeat of each by its new clock",
    )
    go_on_unharmed(spool, jobs)


@pytest.mark.parametrize("jump", [-3 * DAY, 3 * DAY])
@pytest.mark.parametrize("lock_files", ["with lock files", "without"])
def test_a_dead_worker_is_recovered_from_by_a_peer_whose_clock_is_days_off(
    spool: Spool, clock: Clock, jump: int, lock_files: str
) -> None:
    """Protects the lock as proof of death, and that a heartbeat of the future is none: to a clock that
    was set back it would look fresh for days."""
    job, worker = running(spool, "--queue", "q")
    kill(worker)
    if lock_files == "without":
        without_lock_files(spool)
    clock.move(jump)
    spool.worker("--queue", "none", **FAST, **clock.env)
    assert spool.until_state(job, "failed")["crashes"] == 1


# Looking on


@pytest.mark.parametrize("jump", [-30 * 365 * DAY, -3 * DAY, 3 * DAY])
def test_whoever_looks_with_another_clock_sees_no_negative_age_and_no_error(
    spool: Spool, clock: Clock, jump: int
) -> None:
    """Protects the zero of health.workers. A heartbeat of another time is no fresh one, but the lock
    is held: the worker counts as hung, never as dead."""
    running_job, _ = running(spool)
    waiting = spool.add("--after", "1h", "--", "true")
    clock.move(jump)
    (worker,) = spool.json("workers", code=0, **FAST, **clock.env)["workers"]
    assert worker["heartbeat_age"] >= 0
    assert worker["heartbeat_age"] == pytest.approx(max(0, jump), abs=60 + 2 * HOUR)
    assert worker["state"] == "hung"
    status = spool.json("status", code=0, **clock.env)
    assert status["workers"] == {"alive": 0, "hung": 1, "dead": 0}
    assert (status["counts"]["running"], status["counts"]["queued"]) == (1, 1)
    listed = spool.json("list", code=0, **clock.env)["jobs"]
    assert {job["id"] for job in listed} == {running_job, waiting}
    for verb in (["workers"], ["status"], ["list"], ["show", str(running_job)], ["doctor"]):
        assert b"error" not in spool.run(*verb, code=0, stdin=b"", **clock.env).stderr


# Zones and summers


def test_a_local_time_means_the_same_moment_to_a_worker_in_another_zone(spool: Spool) -> None:
    """`--at` is put into UTC where it is typed. 26 hours lie between the clocks on these two walls."""
    east, west = "EEE-14", "WWW+12"
    past, future = time.time() - 60, time.time() + HOUR
    due = spool.add("--at", local(past, east), "-c", "date +%Z", TZ=east)
    delayed = spool.add("--at", local(future, west), "--", "true", TZ=west)
    spool.worker(TZ=west, **FAST)
    spool.until_state(due, "done")
    assert spool.text("output", str(due)) == "WWW\n", "the zone of a command is its worker's"
    spool.worker(TZ=east, **FAST)
    canary = spool.add("--", "true")
    spool.until_state(canary, "done")
    assert spool.state(delayed) == "queued"
    assert spool.job(delayed)["due_at"][:19] == time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(future))
    for zone in (east, west):
        assert spool.json("list", TZ=zone) == spool.json("list"), "what is shown is in UTC"
    assert spool.text("list", TZ=east) == spool.text("list", TZ=west)


def local(moment: float, zone: str) -> str:
    """What a clock on the wall shows there: `EEE-14` is fourteen hours ahead of UTC."""
    hours = -int(zone[3:])
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment + hours * HOUR))


@pytest.mark.parametrize(
    ("word", "in_utc"),
    [
        ("2027-03-28T01:59:59", "2027-03-28T00:59:59.000Z"),
        ("2027-03-28T02:30", "2027-03-28T01:30:00.000Z"),  # no clock shows it: as if summer had not come yet
        ("2027-03-28T03:00", "2027-03-28T01:00:00.000Z"),
        ("2027-10-31T01:59:59", "2027-10-30T23:59:59.000Z"),
        ("2027-10-31T02:30", "2027-10-31T00:30:00.000Z"),  # comes twice that night: the first
        ("2027-10-31T03:00", "2027-10-31T02:00:00.000Z"),
        ("2027-10-31T02:30+01:00", "2027-10-31T01:30:00.000Z"),  # the second, by its offset
    ],
)
def test_a_local_time_around_the_change_to_and_from_summer(spool: Spool, word: str, in_utc: str) -> None:
    job = spool.add("--at", word, "--", "true", TZ=CENTRAL_EUROPE)
    assert spool.job(job)["due_at"] == in_utc


def test_the_hour_that_comes_twice_delays_nobody_and_runs_nothing_twice(spool: Spool, clock: Clock) -> None:
    """A worker lives through the end of summer: its local time goes back by an hour, the moment of UTC
    by which everything is kept does not."""
    end_of_summer = 1_824_944_400  # 2027-10-31T01:00Z, when 03:00 became 02:00
    env = {**FAST, **clock.env, "TZ": CENTRAL_EUROPE}
    clock.set(end_of_summer - HOUR)
    times = ("2027-10-31T02:30", "2027-10-31T02:30+01:00")
    jobs = [spool.add("--at", word, "-c", "date +%H:%M", **env) for word in times]
    spool.worker("--jobs", "2", **env)
    retried = spool.add("-c", "[ $SPOOLCTL_ATTEMPT = 2 ]", **env)
    clock.set(end_of_summer - 1800 + 1)
    spool.until_state(jobs[0], "done")
    assert spool.state(jobs[1]) == "queued"
    clock.set(end_of_summer - 1)  # a second before, and soon after
    spool.until_state(retried, "done")
    canary = spool.add("--", "true", **env)
    spool.until_state(canary, "done")
    assert spool.state(jobs[1]) == "queued"
    clock.set(end_of_summer + 1800 + 1)
    spool.until_state(jobs[1], "done")
    assert [spool.text("output", str(job)) for job in jobs] == ["02:30\n"] * 2
    assert [len(spool.attempts(job)) for job in (*jobs, canary)] == [1] * 3


# Suspended


class Frozen:
    """Stops worker processes with everything that they run, and lets them go on."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool

    def start(self) -> tuple[int, Process]:
        """A running job and its worker, which can be frozen."""
        return running(self.spool, "--queue", "q")

    def freeze(self) -> None:
        """All processes of the test. A worker that holds the write lock at that moment would stop the
        peer too: it is let go on and frozen again."""
        probe = sqlite3.connect(self.spool.place.path, timeout=0, isolation_level=None)

        def frozen_without_the_lock() -> bool:
            self.stop()
            try:
                probe.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                self.go_on()
                return False
            probe.execute("ROLLBACK")
            return True

        self.spool.until(frozen_without_the_lock, "a stop outside of a transaction")
        probe.close()

    def stop(self) -> None:
        self.pids = self.spool.left_running()
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.spool.until(lambda: all((stat(pid) or "T")[0] in "TZ" for pid in self.pids), "their stop")

    def go_on(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Freezer(Frozen):
    """The same by a control group (v1): what is in it sleeps in the kernel, and not even KILL ends it."""

    def __init__(self, spool: Spool, group: Path) -> None:
        super().__init__(spool)
        self.group = group

    def start(self) -> tuple[int, Process]:
        job = self.spool.add("--queue", "q", "-c", GATE)
        enter = f'echo $$ >{self.group}/cgroup.procs && exec "$@"'
        worker = start_in(self.spool, ["sh", "-c", enter, "sh"], "--queue", "q")
        until_recorded(self.spool, job)
        return job, worker

    def stop(self) -> None:
        (self.group / "freezer.state").write_text("FROZEN")
        self.spool.until(lambda: (self.group / "freezer.state").read_text() == "FROZEN\n", "the frost")

    def go_on(self) -> None:
        (self.group / "freezer.state").write_text("THAWED")


@pytest.fixture
def freezer(spool: Spool) -> Iterator[Freezer]:
    group = Path("/sys/fs/cgroup/freezer") / f"spoolctl-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("freezes a control group (v1), which is not to be had here")
    freezer = Freezer(spool, group)
    try:
        yield freezer
    finally:
        freezer.go_on()
        spool.close()
        spool.until(lambda: removed(group), "the end of the control group")


def removed(group: Path) -> bool:
    """Only once it is empty; a killed process takes a moment to leave it."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


@pytest.fixture(params=["stopped by a signal", "frozen by a control group"])
def frost(request: pytest.FixtureRequest, spool: Spool) -> Frozen:
    if request.param.startswith("stopped"):
        return Frozen(spool)
    freezer: Frozen = request.getfixturevalue("freezer")
    return freezer


def until_hung(spool: Spool, job: int) -> None:
    """The worker of that job has been away for longer than the threshold after which peers look twice."""

    def hung() -> bool:
        found = spool.json("workers", code=0, **FAST)["workers"]
        return [worker["state"] for worker in found if job in worker["running"]] == ["hung"]

    spool.until(hung, "the worker counts as hung")


def test_a_suspended_worker_and_its_command_are_not_robbed_and_go_on(spool: Spool, frost: Frozen) -> None:
    job, worker = frost.start()
    frost.freeze()
    spool.worker("--queue", "none", **FAST)
    until_hung(spool, job)
    not_robbed(spool, job)
    assert spool.events(job) == ["added", "claimed"]
    frost.go_on()
    open_gate(spool)
    assert spool.until_state(job, "done")["crashes"] == 0
    assert len(spool.attempts(job)) == 1
    spool.until_state(spool.add("--queue", "q", "--", "true"), "done")
    assert worker.poll() is None
    soundness.check(spool)


@pytest.mark.parametrize("lock_files", ["with lock files", "without"])
def test_when_the_lid_is_opened_again_nobody_robs_the_other_and_all_go_on(
    spool: Spool, clocks: list[Clock], lock_files: str
) -> None:
    """Two workers and their commands are suspended together; meanwhile the wall clock goes on by hours
    and the monotonic one by next to nothing. The first to wake sees a heartbeat of yesterday."""
    jobs = [running(spool, "--queue", f"q{n}", **clock.env)[0] for n, clock in enumerate(clocks)]
    frost = Frozen(spool)
    frost.freeze()
    if lock_files == "without":
        without_lock_files(spool)
    for clock in clocks:
        clock.move(8 * HOUR)
    frost.go_on()
    go_on_unharmed(spool, jobs)


def test_a_worker_that_is_killed_while_frozen_is_dead_only_once_it_has_thawed(spool: Spool, freezer: Freezer) -> None:
    """Protects the lock: until the kernel lets it die, its processes are all there and could go on."""
    job, worker = freezer.start()
    freezer.freeze()
    worker.kill()
    spool.worker("--queue", "none", **FAST)
    until_hung(spool, job)
    not_robbed(spool, job)
    freezer.go_on()
    assert spool.until_state(job, "failed")["crashes"] == 1
    worker.wait()
    assert [pid for pid in spool.left_running() if pid != spool.processes[1].pid] == []


# Time namespaces: other start times in /proc, another monotonic clock

TIME_NAMESPACE = ["unshare", "--time", "--boottime", "100000", "--monotonic", "50000", "--fork", "--kill-child"]


@pytest.fixture
def namespaces() -> None:
    """A second time namespace can be made here, else skip."""
    made = shutil.which("unshare") and subprocess.run([*TIME_NAMESPACE, "true"], capture_output=True, check=False)
    if not made or made.returncode:
        pytest.skip("unshare --time is not permitted here")


def job_in(spool: Spool, wrapper: list[str], *words: str) -> int:
    """A running job of a worker behind that wrapper."""
    job = spool.add("--queue", "q", *words)
    start_in(spool, wrapper, "--queue", "q")
    until_recorded(spool, job)
    return job


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(
    ("worker", "peer", "lock_files"),
    [
        pytest.param(TIME_NAMESPACE, [], "with lock files", id="worker inside"),
        pytest.param(TIME_NAMESPACE, [], "without", id="worker inside, no lock files"),
        pytest.param([], TIME_NAMESPACE, "without", id="peer inside, no lock files"),
    ],
)
def test_a_stopped_worker_in_another_time_namespace_is_not_robbed(
    spool: Spool, worker: list[str], peer: list[str], lock_files: str
) -> None:
    """Protects the lock; without lock files, that a start time is compared only with one of the same
    count: the kernel shows each process's start by the clock of whoever looks."""
    job = job_in(spool, worker, "-c", GATE)
    if lock_files == "without":
        without_lock_files(spool)
    frost = Frozen(spool)
    frost.freeze()
    spool.until(lambda: heartbeat_age(spool) > 0.5, "a stale heartbeat")
    start_in(spool, peer, "--queue", "none", SPOOLCTL_TEST_REAP_THRESHOLD="0.3")
    not_robbed(spool, job)
    frost.go_on()
    open_gate(spool)
    assert spool.until_state(job, "done")["crashes"] == 0


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(
    ("worker", "peer"),
    [
        pytest.param([], [], id="both outside"),  # the control
        pytest.param(TIME_NAMESPACE, [], id="worker inside"),
        pytest.param([], TIME_NAMESPACE, id="peer inside"),
    ],
)
def test_the_command_of_a_worker_that_died_in_another_time_namespace_is_ended_before_its_job_is_put_back(
    spool: Spool, worker: list[str], peer: list[str]
) -> None:
    """Protects the same for the group's leader: taken for a stranger that has the group's number, it
    would live on beside the next attempt of its job."""
    job = job_in(spool, worker, "--", *GROUP_ONLY)
    spool.until(lambda: (spool.folder / "orphan").exists(), "the command")
    orphan = int((spool.folder / "orphan").read_text())
    try:
        os.kill(sql(spool, "SELECT pid FROM workers")[0][0], signal.SIGKILL)
        start_in(spool, peer, "--queue", "none")
        assert spool.until_state(job, "failed")["crashes"] == 1
        assert not runs(orphan)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(orphan, signal.SIGKILL)  # `Spool.close` does not find it: its environment is empty


# Another boot


@pytest.fixture
def another_boot(tmp_path: Path) -> list[str]:
    """A wrapper: what it starts finds that the machine has been started anew."""
    other = tmp_path / "boot_id"
    other.write_text(f"{uuid.uuid4()}\n")
    mount = f'mount --bind {other} /proc/sys/kernel/random/boot_id && exec "$@"'
    wrapper = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts another boot_id in a mount namespace, which is not permitted here")
    return wrapper


@pytest.mark.parametrize("lock_files", ["with lock files", "without"])
def test_after_a_boot_the_jobs_of_the_one_before_are_taken_back(
    spool: Spool, another_boot: list[str], lock_files: str
) -> None:
    """Protects the boot id: where the lock file is gone, too, a process that has the dead worker's pid
    and even its start time is not the worker."""
    job, worker = running(spool, "--queue", "q")
    kill_with_its_command(spool, worker, job)
    if lock_files == "without":
        without_lock_files(spool)
    mine = stat(os.getpid())
    assert mine is not None
    sql(spool, "UPDATE workers SET pid = ?, pid_start = ?", os.getpid(), int(mine[19]))
    heir = start_in(spool, another_boot, "--queue", "none")
    assert spool.until_state(job, "failed")["crashes"] == 1
    spool.until(lambda: sql(spool, "SELECT pid FROM workers") == [(heir.pid,)], "the end of the old worker's line")


def test_after_a_boot_a_process_that_has_been_given_the_old_groups_number_is_left_alone(
    spool: Spool, another_boot: list[str]
) -> None:
    """Protects the boot id in fence.group_in_reach: pids and start times begin anew with each boot, so
    both together may be a stranger's."""
    job, worker = running(spool, "--queue", "q")
    kill_with_its_command(spool, worker, job)
    stranger = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        spool.until(lambda: Path(f"/proc/{stranger.pid}/cmdline").read_bytes() == b"sleep\x00100\0", "the stranger")
        found = stat(stranger.pid)
        assert found is not None
        sql(spool, "UPDATE attempts SET pid = ?, pid_start = ? WHERE job = ?", stranger.pid, int(found[19]), job)
        start_in(spool, another_boot, "--queue", "none")
        assert spool.until_state(job, "failed")["crashes"] == 1
        assert stranger.poll() is None
    finally:
        kill(stranger)
