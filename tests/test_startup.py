"""What a start loads. Every call pays for it, so each module more is a decision: it is made here."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Spool

# Of the standard library, beyond a bare interpreter and SQLite's driver, without which there is nothing to do.
STANDARD = {"__future__", "errno"}
SHARED = {
    *("spoolctl", "spoolctl.cli", "spoolctl.context", "spoolctl.errors", "spoolctl.limits", "spoolctl.states"),
    *("spoolctl.language", "spoolctl.language.parse", "spoolctl.language.spec"),
    *("spoolctl.language.values", "spoolctl.store", "spoolctl.store.database", "spoolctl.store.driver"),
    *("spoolctl.store.events", "spoolctl.store.place", "spoolctl.store.vector"),
    "spoolctl.verbs",
}
ADD = SHARED | {"spoolctl.run", "spoolctl.run.bell", "spoolctl.store.submit", "spoolctl.verbs.add"}
SLOW = {
    *("argparse", "dataclasses", "typing", "uuid", "subprocess", "importlib.resources", "json", "re", "pathlib"),
    *("logging", "threading", "sqlite3", "difflib", "textwrap", "traceback", "tempfile", "shutil", "inspect"),
}
MAIN = "from spoolctl.cli import main; raise SystemExit(main())"


def loaded(spool: Spool, *line: str) -> set[str]:
    """Every module that an interpreter has imported by its end."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *line], cwd=spool.folder, env=spool.env, capture_output=True, check=True
    )
    lines = done.stderr.decode().splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def started(spool: Spool, *words: str) -> set[str]:
    """What a command line of the tool loads that a bare interpreter with the driver has not."""
    return loaded(spool, "-c", MAIN, *words) - loaded(spool, "-c", "import _sqlite3")


@pytest.fixture
def used(spool: Spool) -> Spool:
    """A queue in which one job is done: making one needs more than using it."""
    spool.run("add", "--", "true")
    spool.run("work", "--drain")
    return spool


def test_add_loads_these_modules_and_no_other(used: Spool) -> None:
    found = started(used, "add", "--tag", "a=1", "--key", "k", "--", "echo", "hi")
    assert {name for name in found if name.startswith("spoolctl")} == ADD
    assert found - ADD <= STANDARD


@pytest.mark.parametrize("words", [["status"], ["list"], ["show", "1"], ["output", "1"]], ids=" ".join)
def test_reading_verbs_load_nothing_slow(used: Spool, words: list[str]) -> None:
    found = started(used, *words)
    assert found >= SHARED
    assert found & SLOW == set()
    assert not any(name.startswith("spoolctl.surface") for name in found)
    assert {name for name in found if name.startswith("spoolctl.verbs.")} == {f"spoolctl.verbs.{words[0]}"}


def test_output_loads_nothing_of_the_standard_library_beyond_the_driver(used: Spool) -> None:
    found = started(used, "output", "1")
    assert {name for name in found if not name.startswith("spoolctl")} <= STANDARD
    assert not any(name.startswith("spoolctl.run") for name in found)


def test_a_worker_loads_nothing_slow(used: Spool) -> None:
    found = started(used, "work", "--drain")
    assert found & (SLOW | {"importlib.resources"}) == set()
    assert not any(name.startswith(("spoolctl.surface", "spoolctl.store.schema")) for name in found)


def test_the_single_file_loads_what_the_package_loads(any_form: Spool) -> None:
    any_form.run("add", "--", "true")
    single = any_form.command[1:]
    if single[0] == "-m":
        single = ["-c", MAIN]
    found = loaded(any_form, *single, "add", "--", "true") - loaded(any_form, "-c", "import _sqlite3")
    assert {name for name in found if name.startswith("spoolctl")} == ADD
    assert found - ADD <= STANDARD
