"""Compares servers' answers with TensorFlow's in dtype, shape and every bit, and their refusals with TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from loadtest.foreign.kinds import Array, Tensors

# Largest number of different texts about differences that a Tally keeps.
_MOST_REASONS = 5
_REASON_CHARS = 240
_EXAMPLE_CHARS, _BRIEF_CHARS = 900, 160
# gRPC codes and HTTP statuses by which a server says that the failure is its own fault, not the request's.
_FAULTS = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS", "500", "503", "504"}


class Refused(Exception):
    """A request that a server or TensorFlow refused. code: the canonical name, e.g. INVALID_ARGUMENT."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


@dataclass(slots=True)
class Tally:
    """Counts of the requests to one signature over one wire, by the result of comparing their answers.

    refused: number of requests that both sides refused; they count as equal.
    reasons: text about a difference -> how often it occurred.
    example: the first request whose answer was wrong, with its answer; "" if no answer was wrong.
    """

    equal: int = 0
    asked: int = 0
    refused: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    example: str = ""

    def add(self, reason: str, example: str = "") -> None:
        """Counts a compared request; reason: the difference, "" if the answers are equal."""
        if reason and not self.example:
            self.example = f"{reason[:_EXAMPLE_CHARS]}; {example[:_EXAMPLE_CHARS]}"
        self.asked += 1
        self.equal += not reason
        short = reason[:_REASON_CHARS]
        if short and (short in self.reasons or len(self.reasons) < _MOST_REASONS):
            self.reasons[short] = self.reasons.get(short, 0) + 1


def compare(
    tally: Tally,
    expected: Tensors | Refused,
    ask: Callable[[], Tensors],
    describe: Callable[[int], str] = lambda row: "",
) -> None:
    """Sends a request by a call of `ask`, and counts in `tally` whether the answer is the expected one.

    Args:
      describe: returns the inputs of a row of the request as text.
    """
    try:
        answer: Tensors | Refused = ask()
    except Refused as refusal:
        answer = refusal
    except ValueError as error:
        tally.add(f"answer of another form: {error}", describe(0))
        return
    if isinstance(expected, Refused):
        if not isinstance(answer, Refused):
            tally.add(f"answered what TensorFlow refuses: {expected}", f"{describe(0)} got {_brief(answer)}")
        elif answer.code in _FAULTS:
            tally.add(f"failed ({answer}) where TensorFlow refuses: {expected}", describe(0))
        else:
            tally.refused += 1
            tally.add("")
    elif isinstance(answer, Refused):
        tally.add(f"refused what TensorFlow answers: {answer}", describe(0))
    else:
        reason = difference(answer, expected)
        tally.add(reason, _first_wrong(answer, expected, describe) if reason and not tally.example else "")


def _first_wrong(answer: Tensors, expected: Tensors, describe: Callable[[int], str]) -> str:
    """Returns the inputs of the first row whose answer differs, the wanted answer, and the answer that came."""
    for name in sorted(expected.keys() & answer.keys()):
        wanted, got = expected[name], answer[name]
        if wanted.shape != got.shape or wanted.dtype != got.dtype or not wanted.ndim:
            continue
        for row in range(len(wanted)):
            if not _same_bits(got[row : row + 1], wanted[row : row + 1]):
                return f"row {row}: {describe(row)} wanted {_brief(wanted[row])} got {_brief(got[row])}"
    return f"row 0: {describe(0)} wanted {_brief(expected)} got {_brief(answer)}"


def _brief(value: object) -> str:
    text = np.array2string(value, threshold=8, edgeitems=3) if isinstance(value, np.ndarray) else str(value)
    return " ".join(text.split())[:_BRIEF_CHARS]


def difference(answer: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Describes the first difference of two answers; "" if they are equal to the bit, where one NaN equals another."""
    if answer.keys() != expected.keys():
        return f"outputs {sorted(answer)} instead of {sorted(expected)}"
    for name, wanted in expected.items():
        got = answer[name]
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            return f"{name}: {got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
        if not _same_bits(got, wanted):
            return f"{name}: other numbers"
    return ""


def _same_bits(a: Array, b: Array) -> bool:
    # NumPy's dtype.kind is "V" for bfloat16, not "f".
    if a.dtype.kind not in "fV":
        return bool(a.tolist() == b.tolist())
    bits = np.dtype(f"u{a.dtype.itemsize}")
    same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    are_nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return bool((same | are_nan).all())
