"""Odd places and odd words, each once a surprise to somebody who tried the tool as a stranger."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import AS_NOBODY

if TYPE_CHECKING:
    from tests.conftest import Spool

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user, which only root may")
NOBODY = 65534


def refused(spool: Spool, *words: str, code: int = 1, **env: str) -> str:
    """What a refused command line says."""
    return spool.run(*words, code=code, **env).stderr.decode()


def shell(spool: Spool, script: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """The tool, started by a shell that arranges something first; `"$@"` is its command line."""
    command = ["sh", "-c", script, "sh", *spool.command, *words]
    return subprocess.run(command, cwd=spool.folder, env=spool.env, capture_output=True, check=False)


def test_a_short_date_is_refused(spool: Spool) -> None:
    assert "--at '2027-01-3'" in refused(spool, "add", "--at", "2027-01-3", "true")


def test_a_comma_in_a_time_is_refused_on_every_python(spool: Spool) -> None:
    refused(spool, "add", "--at", "2027-01-31T08:00,00+00:00", "true")


def test_a_packages_own_name_is_no_verb(spool: Spool) -> None:
    assert "no verb '__init__'" in refused(spool, "__init__")


def test_version_is_understood_before_and_after_a_verb(spool: Spool) -> None:
    assert spool.text("--version", "status") == spool.text("status", "--version") == spool.text("--version")


def test_version_and_help_are_json_where_json_is_asked_for(spool: Spool) -> None:
    assert spool.text("--version").strip() == "spoolctl " + json.loads(spool.text("--json", "--version"))["version"]
    assert json.loads(spool.text("add", "--help", "--json"))["help"] == spool.text("add", "--help")


@pytest.mark.parametrize("verb", ["show", "output"])
def test_not_found_says_where_it_looked(spool: Spool, verb: str) -> None:
    assert ".spoolctl/queue.db" in refused(spool, verb, "1")


def test_a_number_with_a_dash_is_no_command(spool: Spool) -> None:
    refused(spool, "add", "-5", "true")


def test_a_link_to_a_queue_is_that_queue(spool: Spool) -> None:
    spool.add("--", "echo", "hi")
    spool.run("work", "--drain")
    (spool.folder / "l.db").symlink_to(".spoolctl/queue.db")
    assert spool.text("--db", "l.db", "output", "1") == "hi\n"
    spool.run("--db", "l.db", "add", "true")
    spool.run("--db", "l.db", "work", "--drain")


def test_a_copied_queue_works_though_its_folders_were_not_copied(spool: Spool) -> None:
    spool.add("--", "true")
    shutil.copy(spool.place.path, spool.folder / "copy.db")
    assert spool.text("--db", "copy.db", "work", "--drain") == "executed 1: 1 done\n"


def test_a_full_stderr_loses_no_output_silently(spool: Spool) -> None:
    spool.run("add", "-c", "echo e >&2")
    spool.run("work", "--drain")
    assert shell(spool, 'exec "$@" 2> /dev/full', "output", "1").returncode == 3


def test_a_program_whose_stdout_is_full_is_told_on_stderr(spool: Spool) -> None:
    assert b"No space left" in shell(spool, 'exec "$@" > /dev/full', "status", "--json").stderr


def test_what_was_added_is_named_where_stdout_is_full(spool: Spool) -> None:
    """The job is in the queue: a caller that took the error for a refusal would submit it twice."""
    assert b"Added job 1" in shell(spool, 'exec "$@" > /dev/full', "add", "true").stderr


@pytest.mark.parametrize("words", [["--db", "{}/q.db", "add", "--cwd", "/", "true"], ["status"]])
def test_absolute_paths_need_no_current_directory(spool: Spool, words: list[str]) -> None:
    spool.env["SPOOLCTL_DB"] = str(spool.folder / "q.db")
    gone = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    assert shell(spool, gone, *(word.format(spool.folder) for word in words)).returncode == 0


def test_a_wrong_test_knob_makes_nothing(spool: Spool) -> None:
    refused(spool, "work", "--once", SPOOLCTL_TEST_REAP_THRESHOLD="x")
    assert list(spool.folder.iterdir()) == []


def test_paths_in_json_are_unicode_whatever_the_folder_is_called(spool: Spool) -> None:
    folder = os.fsencode(spool.folder) + b"/x\xff"
    os.mkdir(folder)
    for words in (["add", "true"], ["work", "--drain"], ["show", "1", "--json"]):
        done = subprocess.run([*spool.command, *words], cwd=folder, env=spool.env, capture_output=True, check=True)
    json.dumps(json.loads(done.stdout), ensure_ascii=False).encode()


def test_every_folder_is_private_whatever_the_umask(spool: Spool) -> None:
    shell(spool, 'umask 0; exec "$@"', "add", "true")
    shell(spool, 'umask 0; exec "$@"', "work", "--drain")
    assert [p for p in (spool.folder / ".spoolctl").rglob("*") if p.stat().st_mode & 0o077] == []


def test_status_does_not_load_socket(spool: Spool) -> None:
    spool.add("true")
    code = "import sys; from spoolctl.cli import main; main(); sys.exit('socket' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, "status"], cwd=spool.folder, env=spool.env, check=True)


@needs_root
def test_a_worker_does_not_serve_a_queue_that_another_user_can_write(spool: Spool) -> None:
    """Protects run/ownership.py: without it that user runs commands as root."""
    spool.add("true")
    subprocess.run(["chown", "-R", str(NOBODY), str(spool.folder / ".spoolctl")], check=True)
    assert "--trust" in refused(spool, "work", "--drain", code=3)
    assert spool.json("status")["counts"]["queued"] == 1
    spool.run("work", "--drain", "--trust")


@pytest.mark.parametrize("what", ["queue.db", ""])
def test_a_worker_does_not_serve_a_queue_that_everybody_can_write(spool: Spool, what: str) -> None:
    spool.add("true")
    (spool.folder / ".spoolctl" / what).chmod(0o777)
    assert "written by everybody" in refused(spool, "work", "--drain", code=3)


@needs_root
@pytest.mark.parametrize("words", [["status"], ["show", "1"], ["retry", "1"], ["add", "true"]], ids=" ".join)
def test_a_queue_that_may_not_be_seen_is_not_taken_for_none(spool: Spool, words: list[str]) -> None:
    """Nor does the search go on to a queue further up, which would get the job instead."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        (folder / ".spoolctl").mkdir(mode=0o700)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, *words], cwd=folder, env=spool.env, capture_output=True, check=False
        )
    finally:
        shutil.rmtree(folder)
    assert (done.returncode, done.stdout) == (3, b""), done.stderr
    assert b"Permission denied" in done.stderr
