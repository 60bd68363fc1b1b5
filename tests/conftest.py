"""What the tests share: a queue in a folder of its own, used as its user would, and real workers.

Nothing here waits for a time where it can wait for a condition (`Spool.until`), and nothing a test
has started outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spoolctl.store.database import Database, open_queue
from spoolctl.store.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
SINGLE = ROOT / "dist" / "spoolctl.py"
DEADLINE = 60.0  # generous: a busy machine is no failure
FAST = {"SPOOLCTL_TEST_HEARTBEAT_INTERVAL": "0.1", "SPOOLCTL_TEST_REAP_THRESHOLD": "1"}

# Everything is loaded before the superuser becomes somebody else, who may not be able to read this checkout.
AS_NOBODY = """
import os, sys, difflib, json
import spoolctl.cli
from spoolctl.surface.help import all_verbs
all_verbs()
if os.getuid() == 0:  # no mode bits stop the superuser
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
raise SystemExit(spoolctl.cli.main())
"""

FORMS = {
    "source": [sys.executable, "-m", "spoolctl"],
    "single": [sys.executable, str(SINGLE)],
}


class Spool:
    """One folder with one queue in it, and the tool as a user types it.

    form: a key of FORMS. `env` is the whole environment of what is started.
    """

    def __init__(self, folder: Path, form: str = "source") -> None:
        self.folder = folder
        self.command = FORMS[form]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "SPOOL_TEST": str(folder),  # by which `close` finds what a test has left running
        }
        if form == "source":
            self.env["PYTHONPATH"] = str(ROOT)

    @property
    def place(self) -> Place:
        return Place(str(self.folder / ".spoolctl" / "queue.db"))

    def run(
        self, *words: str | bytes, code: int | None = 0, stdin: bytes = b"", **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one command line to its end; its exit status must be `code` (None: any)."""
        done = subprocess.run(
            [*self.command, *words],
            cwd=self.folder,
            env={**self.env, **env},
            input=stdin,
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        assert b"Traceback" not in done.stderr, done.stderr
        return done

    def text(self, *words: str | bytes, code: int | None = 0, **env: str) -> str:
        """The text on stdout of one command line."""
        return self.run(*words, code=code, **env).stdout.decode()

    def json(self, *words: str | bytes, code: int | None = 0, **env: str) -> Any:
        """The object on stdout of one command line with --json."""
        return json.loads(self.run(words[0], "--json", *words[1:], code=code, **env).stdout)

    def add(self, *words: str | bytes, **env: str) -> int:
        """Submit; the job's number."""
        number: int = self.json("add", *words, **env)["job_id"]
        return number

    def job(self, number: int) -> dict[str, Any]:
        """The job as `show` has it."""
        job: dict[str, Any] = self.json("show", str(number))["job"]
        return job

    def attempts(self, number: int) -> list[dict[str, Any]]:
        attempts: list[dict[str, Any]] = self.json("show", str(number))["attempts"]
        return attempts

    def events(self, number: int) -> list[str]:
        """The names of what happened to a job, in order."""
        return [event["event"] for event in self.json("show", str(number))["events"]]

    def worker(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a worker; its log goes to worker-N.log in the folder."""
        log = open(self.folder / f"worker-{len(self.processes)}.log", "wb")
        with log:
            process = subprocess.Popen(
                [*self.command, "work", *words],
                cwd=self.folder,
                env={**self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def until(self, condition: Callable[[], Any], what: str = "the condition", deadline: float = DEADLINE) -> Any:
        """The first true value of `condition`; fails after `deadline` seconds."""
        end = time.monotonic() + deadline
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                logs = [log.read_text(errors="replace")[-2000:] for log in sorted(self.folder.glob("worker-*.log"))]
                pytest.fail("\n".join([f"{what} did not come true in {deadline:.0f} s", *logs]))
            time.sleep(0.02)

    def until_state(self, number: int, *states: str) -> dict[str, Any]:
        """The job, once it is in one of `states`."""
        self.until(lambda: self.state(number) in states, f"job {number} in {states}")
        return self.job(number)

    def state(self, number: int) -> str:
        """The job's state, read straight from the file: cheap enough to poll."""
        database = open_queue(self.place, read_only=True)
        try:
            with database.read() as tx:
                return str(tx.execute("SELECT state FROM jobs WHERE id = ?", (number,)).fetchone()[0])
        finally:
            database.close()

    def left_running(self) -> list[int]:
        """Every process that was started in this test's environment and still runs."""
        mark = b"SPOOL_TEST=" + str(self.folder).encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                pass
        return found

    def close(self) -> None:
        """End everything."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in self.left_running():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass


def sql(spool: Spool, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """What a statement answers, straight from the file."""
    with contextlib.closing(sqlite3.connect(spool.place.path, timeout=30)) as connection, connection:
        return connection.execute(statement, values).fetchall()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """A queue used through the source tree."""
    spool = Spool(tmp_path)
    yield spool
    spool.close()


@pytest.fixture(params=list(FORMS))
def any_form(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spool]:
    """A queue used through each form in which the tool comes: source tree, single file."""
    if request.param == "single" and not SINGLE.exists():
        pytest.fail("dist/spoolctl.py is not there: make single")
    spool = Spool(tmp_path, request.param)
    yield spool
    spool.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An open, empty queue, for the store's own tests."""
    (tmp_path / ".spoolctl").mkdir(mode=0o700)
    database = open_queue(Place(str(tmp_path / ".spoolctl" / "queue.db")), create_missing=True)
    yield database
    database.close()
