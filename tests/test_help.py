"""The tool describing itself: help for people, capabilities for programs, and both tell the truth."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from spoolctl import __version__, cli, limits
from spoolctl.errors import CODES, EXITS, Fail
from spoolctl.language.parse import parse
from spoolctl.language.spec import COMMON
from spoolctl.language.values import Command, Moment, Path
from spoolctl.states import ATTEMPT_STATES, EVENTS, JOB_STATES, MOVES, REASONS, TERMINAL
from spoolctl.surface.capabilities import capabilities
from spoolctl.surface.help import all_verbs, overview, page, verb_names

if TYPE_CHECKING:
    from spoolctl.language.spec import Flag, Verb
    from tests.conftest import Spool

VERBS = {verb.name: verb for verb in all_verbs()}
FLAGS = [(verb, flag) for verb in VERBS.values() for flag in verb.flags]
VALUED = [(verb, flag) for verb, flag in FLAGS if flag.kind]
each_verb = pytest.mark.parametrize("name", verb_names())


def named(pairs: list[tuple[Verb, Flag]]) -> list[str]:
    return [f"{verb.name} {flag.names[0]}" for verb, flag in pairs]


def folded(text: str) -> str:
    """`text` as one line: a page breaks its lines anywhere."""
    return " ".join(text.split())


def published(verb: Verb, flag: Flag) -> dict[str, Any]:
    """What capabilities tells about a flag, as a program reads it."""
    told = json.loads(json.dumps(capabilities()))
    found: dict[str, Any] = next(one for one in told["verbs"][verb.name]["flags"] if one["names"] == list(flag.names))
    return found


# Help


def test_help_lists_every_verb_with_what_it_does(any_form: Spool) -> None:
    done = any_form.run("--help")
    assert done.stderr == b""
    assert done.stdout.decode() == any_form.text("-h") == overview()
    for verb in VERBS.values():
        assert f"  {verb.name} " in overview()
        assert verb.summary in folded(overview())


@each_verb
def test_a_verbs_help_is_its_page_wherever_the_flag_stands(any_form: Spool, name: str) -> None:
    told = any_form.text(name, "--help")
    assert told == page(VERBS[name])
    assert told.startswith(f"usage: spoolctl {name}")
    assert told.encode().count(b"\n") > 5
    assert list(any_form.folder.iterdir()) == []


def test_help_before_a_verb_is_that_verbs_help(any_form: Spool) -> None:
    assert any_form.text("--help", "add") == page(VERBS["add"])


@each_verb
def test_no_line_of_a_page_is_wider_than_a_terminal(name: str) -> None:
    # An example that cannot be broken is as long as it is.
    examples = [words for words, _ in VERBS[name].examples]
    for line in (page(VERBS[name]) + overview()).splitlines():
        assert len(line) <= 100 or any(words in line for words in examples), line


@pytest.mark.parametrize(("verb", "flag"), FLAGS, ids=named(FLAGS))
def test_a_flag_is_explained_on_its_page_with_its_form_and_default(verb: Verb, flag: Flag) -> None:
    told = folded(page(verb))
    for name in flag.names:
        assert f" {name}" in told
    assert folded(flag.help) in told
    if flag.kind:
        assert f"{flag.names[-1]} {flag.kind.word} " in told
        assert folded(flag.kind.says) in told
        if flag.default not in (None, []):
            assert f"default {flag.default}]" in told


@each_verb
def test_the_common_flags_are_explained_on_every_page(name: str) -> None:
    for flag in COMMON:
        assert folded(flag.help) in folded(page(VERBS[name]))


EXAMPLES = [words for verb in VERBS.values() for words, _ in verb.examples]


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_can_be_typed(line: str) -> None:
    words = shlex.split(line)
    ours = next((at for at, word in enumerate(words) if word in ("&", "&&", "|", ";")), None)  # the rest is the shell's
    verb, args = parse(words[:ours], cli.describe, cli.suggest)
    assert verb is not None
    assert not args.help


@each_verb
def test_every_verb_has_an_example(name: str) -> None:
    assert any(words.split()[0] == name for words, _ in VERBS[name].examples)


def test_version_is_one_line(any_form: Spool) -> None:
    done = any_form.run("--version")
    assert (done.stdout.decode(), done.stderr) == (f"spoolctl {__version__}\n", b"")


# Capabilities


def test_capabilities_need_no_queue_and_are_what_the_code_obeys(any_form: Spool) -> None:
    told = any_form.json("capabilities", SPOOLCTL_DB="")
    assert told == {**json.loads(json.dumps(capabilities())), "warnings": []}
    assert list(any_form.folder.iterdir()) == []
    assert told["version"] == __version__
    assert sorted(told["verbs"]) == verb_names()
    assert told["exit_codes"] == {str(status): meaning for status, meaning in EXITS.items()}
    assert {code: error["exit"] for code, error in told["error_codes"].items()} == {c: s for c, (s, _) in CODES.items()}
    assert told["job_states"] == JOB_STATES
    assert told["terminal_states"] == list(TERMINAL)
    assert told["attempt_states"] == list(ATTEMPT_STATES)
    assert told["failure_reasons"] == REASONS
    assert told["events"] == list(EVENTS)
    assert told["moves"] == MOVES


def test_capabilities_in_words_names_every_verb(any_form: Spool) -> None:
    told = any_form.text("capabilities")
    for name in verb_names():
        assert f"\nspoolctl {name}" in told


def test_every_error_code_ends_with_a_published_status() -> None:
    assert {status for status, _ in CODES.values()} == set(EXITS) - {0}


def test_the_limits_of_the_mission_are_published() -> None:
    told = capabilities()["limits"]
    assert (told["timeout_min"], told["timeout_max"], told["timeout_default"]) == (1, 2**63 - 1, 300)
    assert (told["env_key_max"], told["env_value_max"]) == (128, 4096)
    assert (told["retries_default"], told["backoff_base"], told["backoff_cap"]) == (3, 2, 60)
    assert (told["heartbeat_interval"], told["reap_threshold"], told["term_grace"]) == (5.0, 30.0, 5.0)
    assert told.keys() >= {name.lower() for name in vars(limits) if name.endswith(("_MAX", "_MIN", "_DEFAULT"))}


def test_the_environment_is_published_and_the_two_test_knobs_with_their_bounds() -> None:
    told = capabilities()
    assert told["environment"].keys() >= {"SPOOLCTL_DB"}
    for knob, default in (("HEARTBEAT_INTERVAL", 5.0), ("REAP_THRESHOLD", 30.0)):
        found = told["environment"][f"SPOOLCTL_TEST_{knob}"]
        assert found.keys() == {"meaning", "default", "min", "max"}
        assert (found["default"], found["min"] <= default <= found["max"]) == (default, True)
    assert told["command_environment"].keys() == {
        *("SPOOLCTL_JOB_ID", "SPOOLCTL_ATTEMPT", "SPOOLCTL_KEY", "SPOOLCTL_QUEUE", "SPOOLCTL_MARKER"),
    }


@pytest.mark.parametrize("word", ["", "x", "nan", "inf", "0", "-1", "1e9"])
def test_a_knob_outside_its_bounds_is_refused_by_name(spool: Spool, word: str) -> None:
    spool.add("--", "true")
    for knob in ("SPOOLCTL_TEST_HEARTBEAT_INTERVAL", "SPOOLCTL_TEST_REAP_THRESHOLD"):
        done = spool.run("work", "--once", code=1, **{knob: word})
        assert done.stderr.decode().startswith(f"spoolctl: error: {knob} '{word}'")
        assert done.stdout == b""
    assert spool.job(1)["state"] == "queued"


@pytest.mark.parametrize(("verb", "flag"), FLAGS, ids=named(FLAGS))
def test_a_flag_is_published_with_its_form_bounds_and_default(verb: Verb, flag: Flag) -> None:
    told = published(verb, flag)
    default = {None: None}.get(flag.default, flag.default) if not isinstance(flag.default, list) else []
    assert (told["default"], told["repeatable"], told["excludes"]) == (default, flag.many, list(flag.excludes))
    assert told["help"] == flag.help
    assert (told["value"], told["form"]) == ((flag.kind.word, flag.kind.says) if flag.kind else (None, None))
    if flag.kind and not isinstance(flag.kind, (Command, Moment, Path)):
        assert flag.kind.bounds()
        assert told.items() >= flag.kind.bounds().items()


def test_only_add_run_and_work_create_a_queue() -> None:
    told = capabilities()["verbs"]
    assert {name for name, verb in told.items() if verb["creates"]} == {"add", "run", "work"} & VERBS.keys()
    for name in ("status", "list", "show", "output", "workers", "capabilities"):
        assert not told[name]["mutates"]
    for name in ("add", "work", "retry", "cancel"):
        assert told[name]["mutates"]


# What is told is what is enforced


@pytest.mark.parametrize(("verb", "flag"), VALUED, ids=named(VALUED))
def test_a_bad_value_is_refused_in_the_flags_name_and_told_what_is_wanted(verb: Verb, flag: Flag) -> None:
    assert flag.kind
    assert flag.kind.bad
    for bad in flag.kind.bad:
        for name in flag.names:
            with pytest.raises(Fail) as caught:
                parse([verb.name, f"{name}={bad}"], cli.describe, cli.suggest)
            assert caught.value.status == 1
            assert name in caught.value.message
            assert flag.kind.says in caught.value.message + caught.value.hint


@pytest.mark.parametrize(("verb", "flag"), VALUED, ids=named(VALUED))
def test_the_same_happens_on_the_command_line(spool: Spool, verb: Verb, flag: Flag) -> None:
    assert flag.kind
    bad = min(flag.kind.bad, key=lambda word: (word == "", len(word)))
    done = spool.run(verb.name, f"{flag.names[0]}={bad}", code=1)
    said = done.stderr.decode()
    assert said.startswith(f"spoolctl: error: {flag.names[0]} ")
    assert flag.kind.says in said
    assert said.count("\n") == 1
    assert done.stdout == b""
    assert list(spool.folder.iterdir()) == []
