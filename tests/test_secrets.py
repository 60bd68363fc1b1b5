"""--secret-env: the name is in the queue, the value only in the worker and its command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.conftest import Spool

VALUE = "correct horse battery staple"


def test_the_command_has_the_value_and_the_queue_only_the_name(any_form: Spool) -> None:
    job = any_form.add("--secret-env", "TOKEN", "--secret-env", "PATH", "-c", '[ "$TOKEN" = "$(cat value)" ]')
    (any_form.folder / "value").write_text(VALUE)
    any_form.run("work", "--drain", TOKEN=VALUE)
    assert any_form.job(job)["state"] == "done"
    assert any_form.job(job)["secret_env"] == ["PATH", "TOKEN"]
    assert "secret env:  PATH, TOKEN\n" in any_form.text("show", str(job))
    files = [path.read_bytes() for path in any_form.folder.rglob("*") if path.is_file() and path.name != "value"]
    assert not any(VALUE.encode() in content for content in files)


def test_a_worker_without_the_variable_does_not_start_the_command(spool: Spool) -> None:
    """It would run with an empty token. An empty value that the worker has is a value."""
    job = spool.add("--secret-env", "TOKEN", "--max-retries", "0", "-c", "touch ran")
    spool.run("work", "--drain", code=6)
    assert (spool.job(job)["failure_reason"], spool.job(job)["state"]) == ("spawn_failed", "dead")
    assert spool.job(job)["error"] == "--secret-env TOKEN: the worker has no such variable"
    assert not (spool.folder / "ran").exists()
    spool.run("retry", str(job))
    spool.run("work", "--drain", TOKEN="")
    assert (spool.folder / "ran").exists()


def test_a_name_that_also_has_a_value_is_refused(spool: Spool) -> None:
    done = spool.run("add", "--env", "TOKEN=1", "--secret-env", "TOKEN", "--", "true", code=1)
    assert "--secret-env TOKEN: --env sets it" in done.stderr.decode()
    done = spool.run("add", "--secret-env", "A=1", "--", "true", code=1)
    assert "its value comes from the worker" in done.stderr.decode()


def test_a_batch_has_them_too_and_a_key_tells_them_apart(spool: Spool) -> None:
    job = {"argv": ["true"], "secret_env": ["A", "B"], "max_output": "10K", "on_overflow": "truncate", "key": "k"}
    spool.run("add", "--batch", "-", stdin=json.dumps(job).encode())
    assert (spool.job(1)["secret_env"], spool.job(1)["max_output"]) == (["A", "B"], 10240)
    same = ("--key", "k", "--max-output", "10240", "--on-overflow", "truncate", "--secret-env", "B")
    assert spool.json("add", *same, "--secret-env", "A", "--", "true")["deduplicated"] is True
    assert "with another --secret-env" in spool.run("add", *same, "--", "true", code=5).stderr.decode()
