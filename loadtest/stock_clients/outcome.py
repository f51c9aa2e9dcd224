"""Checks of single calls of a client, their results, and their lines in the report."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from loadtest.model_samples import ServedModel

_MAX_ANSWER = 100


class Skip(Exception):
    """Raised if a check must be skipped, because this machine or this model lacks something that the message names."""


class Failed(Exception):
    """Raised if the answer to a call is wrong."""


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses of the server, and the model that it serves.

    example: features of the tf.Example for Classify and Regress, in JSON form.
    """

    http: str
    grpc: str
    base_path: Path
    model: ServedModel
    example: dict[str, object]


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one call by one client. run: makes the call, and returns the answer in a few words or raises."""

    client: str
    call: str
    run: Callable[[], str]


def require(is_so: bool, otherwise: str) -> None:
    """Raises Failed with a text if a condition is false."""
    if not is_so:
        raise Failed(otherwise)


def run_checks(checks: Iterable[Check]) -> int:
    """Runs checks of clients, prints a line for each check and a summary; returns how many checks failed."""
    counts = {"ok": 0, "skipped": 0, "FAILED": 0}
    for check in checks:
        verdict, answer = _outcome(check)
        counts[verdict] += 1
        answer = " ".join(answer.split())
        if len(answer) > _MAX_ANSWER and verdict == "ok":
            answer = answer[:_MAX_ANSWER] + " ..."
        sys.stdout.write(f"{check.client:<22} {check.call:<62} {verdict:<8} {answer}\n")
        sys.stdout.flush()
    sys.stdout.write(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "\n")
    return counts["FAILED"]


def _outcome(check: Check) -> tuple[str, str]:
    try:
        return "ok", check.run()
    except Skip as reason:
        return "skipped", str(reason)
    except Exception as error:
        # Any exception that a stock client raises counts as a failure of the check.
        return "FAILED", "".join(traceback.format_exception_only(error))
