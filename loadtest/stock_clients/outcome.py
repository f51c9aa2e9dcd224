"""Result of a check of one call, and its line in the report."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from loadtest.model_samples import ServedModel

_MAX_ANSWER = 100


class Skip(Exception):
    """The call can not be made here; the message says what is missing."""


class Failed(Exception):
    """The answer is not what it must be."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server is and what it serves.

    example: features of the tf.Example that is classified and regressed, as JSON has it.
    """

    http: str
    grpc: str
    base_path: Path
    model: ServedModel
    example: dict[str, object]


@dataclass(frozen=True, slots=True)
class Check:
    """One call of one client; run returns what was answered, in a few words, and raises where that is wrong."""

    client: str
    call: str
    run: Callable[[], str]


def require(is_so: bool, otherwise: str) -> None:
    """Raises Failed with a text where something is not so."""
    if not is_so:
        raise Failed(otherwise)


def tell(checks: Iterable[Check]) -> int:
    """Runs checks, prints a line for each and a summary; returns how many failed."""
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
        # Whatever a stock client raises is its verdict.
        return "FAILED", "".join(traceback.format_exception_only(error))
