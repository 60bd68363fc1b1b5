"""Many workers, killed at random moments: no job runs twice at a time, none is lost.

Protects the fence (`run/fence.py`). Tried by hand: with its call in `run/reaper.py` taken out, the
long jobs meet their own second copy and the test fails.
"""

from __future__ import annotations

import random
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from tests.conftest import FAST
from tests.crash import soundness

if TYPE_CHECKING:
    from tests.conftest import Spool

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="the jobs need flock(1), of util-linux")

# Some start a child in a session of its own, which a kill of the group does not reach.
SHORT = soundness.EXCLUSIVE % "sleep 0.05"
DETACHED = soundness.EXCLUSIVE % "setsid sleep 0.2 & wait"
# Outlives its worker by more than a tick and the first backoff together.
LONG = soundness.EXCLUSIVE % "setsid sleep 6 & wait"
COMMANDS = (LONG, SHORT, DETACHED, SHORT, SHORT, DETACHED, SHORT, SHORT)


def storm(spool: Spool, jobs: int, kills: int, workers: int, seed: int) -> None:
    """Run `jobs` jobs while a random worker is killed about every 100 ms, `kills` times."""
    chance = random.Random(seed)
    numbers = [spool.add("-c", COMMANDS[i % len(COMMANDS)]) for i in range(jobs)]
    alive = [spool.worker("--jobs", "2", **FAST) for _ in range(workers)]
    for _ in range(kills):
        time.sleep(chance.uniform(0.05, 0.15))  # the pace of the storm, not a wait
        victim = alive.pop(chance.randrange(len(alive)))
        victim.kill()
        victim.wait()
        alive.append(spool.worker("--jobs", "2", **FAST))
    spool.until(lambda: spool.json("status")["counts"]["done"] == jobs, "every job done", deadline=240)
    soundness.check(spool)
    assert all(spool.state(number) == "done" for number in numbers)
    ended = [line for line in soundness.log(spool) if line.startswith("end")]
    assert {int(line.split()[1]) for line in ended} == set(numbers)


@pytest.mark.timeout(300)
def test_a_storm_of_kills_loses_no_job_and_runs_none_twice_at_a_time(spool: Spool) -> None:
    storm(spool, jobs=60, kills=30, workers=3, seed=1)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(10))
def test_long_storms_lose_no_job_and_run_none_twice_at_a_time(spool: Spool, seed: int) -> None:
    storm(spool, jobs=300, kills=400, workers=4, seed=seed)
