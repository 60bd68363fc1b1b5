"""The whole contract as data, made from the same tables that the code obeys."""

from __future__ import annotations

from spoolctl import __version__, limits
from spoolctl.errors import CODES, EXITS
from spoolctl.language.spec import COMMON
from spoolctl.run.liveness import STATES as WORKER_STATES
from spoolctl.states import ATTEMPT_STATES, EVENTS, JOB_STATES, MOVES, REASONS, TERMINAL
from spoolctl.surface.help import all_verbs, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from spoolctl.language.spec import Flag, Verb

KNOBS = {
    "SPOOLCTL_TEST_HEARTBEAT_INTERVAL": {
        "default": limits.HEARTBEAT_INTERVAL,
        "min": limits.HEARTBEAT_MIN,
        "max": limits.HEARTBEAT_MAX,
    },
    "SPOOLCTL_TEST_REAP_THRESHOLD": {"default": limits.REAP_THRESHOLD, "min": limits.REAP_MIN, "max": limits.REAP_MAX},
}


def capabilities() -> dict[str, Any]:
    """Verbs, flags, bounds, defaults, exit and error codes, states, events, limits, environment."""
    return {
        "name": "spoolctl",
        "version": __version__,
        "schema_version": limits.SCHEMA_VERSION,
        "application_id": limits.APPLICATION_ID,
        "verbs": {verb.name: _verb(verb) for verb in all_verbs()},
        "common_flags": [_flag(flag) for flag in COMMON],
        "exit_codes": {str(status): meaning for status, meaning in EXITS.items()},
        "error_codes": {code: {"exit": status, "meaning": meaning} for code, (status, meaning) in CODES.items()},
        "job_states": JOB_STATES,
        "terminal_states": list(TERMINAL),
        "attempt_states": list(ATTEMPT_STATES),
        "worker_states": WORKER_STATES,
        "failure_reasons": REASONS,
        "events": list(EVENTS),
        "moves": MOVES,
        "limits": published_limits(),
        "environment": {name: {"meaning": what, **KNOBS.get(name, {})} for name, what in limits.ENVIRONMENT.items()},
        "command_environment": limits.COMMAND_ENVIRONMENT,
    }


def published_limits() -> dict[str, Any]:
    """Every number of `limits.py`, under its name in lower case."""
    numbers = {name: value for name, value in vars(limits).items() if name.isupper()}
    return {name.lower(): value for name, value in numbers.items() if isinstance(value, (int, float, str))}


def _verb(verb: Verb) -> dict[str, Any]:
    argument = verb.argument
    return {
        "summary": verb.summary,
        "usage": usage(verb),
        "group": verb.group,
        "mutates": verb.mutates,
        "creates": verb.creates,
        "argument": argument
        and {
            "name": argument.name,
            "help": argument.help,
            "many": argument.many or argument.is_command,
            "required": argument.required,
            **(argument.kind.bounds() if argument.kind else {}),
        },
        "flags": [_flag(flag) for flag in verb.flags],
        "examples": [f"spoolctl {words}" for words, _ in verb.examples],
    }


def _flag(flag: Flag) -> dict[str, Any]:
    return {
        "names": list(flag.names),
        "help": flag.help,
        "value": flag.kind.word if flag.kind else None,
        "form": flag.kind.says if flag.kind else None,
        "repeatable": flag.many,
        "default": flag.default,
        "excludes": list(flag.excludes),
        **(flag.kind.bounds() if flag.kind else {}),
    }
