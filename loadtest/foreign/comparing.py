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
_SIGNED = {2: np.int16, 4: np.int32, 8: np.int64}


class Refused(Exception):
    """A request that a server or TensorFlow refused. code: the canonical name, e.g. INVALID_ARGUMENT."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


@dataclass(slots=True)
class Tally:
    """Counts of the requests to one signature over one wire, by the result of comparing their answers.

    refused: number of requests that both sides refused; they count as equal.
    max_ulp: largest distance of two floats, in steps between neighbours; 0 if no floats differ.
    reasons: text about a difference -> how often it occurred.
    example: the first request whose answer was wrong, with its answer; "" if no answer was wrong.
    """

    equal: int = 0
    asked: int = 0
    refused: int = 0
    max_ulp: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    example: str = ""

    def add(self, reason: str, ulp: int = 0, example: str = "") -> None:
        """Counts a compared request; reason: the difference, "" if the answers are equal."""
        if reason and not self.example:
            self.example = f"{reason[:_EXAMPLE_CHARS]}; {example[:_EXAMPLE_CHARS]}"
        self.asked += 1
        self.equal += not reason
        self.max_ulp = max(self.max_ulp, ulp)
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
        tally.add(f"answer of another form: {error}", 0, describe(0))
        return
    if isinstance(expected, Refused):
        if not isinstance(answer, Refused):
            tally.add(f"answered what TensorFlow refuses: {expected}", 0, f"{describe(0)} got {_brief(answer)}")
        elif answer.code in _FAULTS:
            tally.add(f"failed ({answer}) where TensorFlow refuses: {expected}", 0, describe(0))
        else:
            tally.refused += 1
            tally.add("")
    elif isinstance(answer, Refused):
        tally.add(f"refused what TensorFlow answers: {answer}", 0, describe(0))
    else:
        reason, ulp = difference(answer, expected)
        tally.add(reason, ulp, _first_wrong(answer, expected, describe) if reason and not tally.example else "")


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


def difference(answer: Mapping[str, Array], expected: Mapping[str, Array]) -> tuple[str, int]:
    """Describes the first difference of two answers, "" if equal; also returns the floats' largest distance in ulps."""
    if answer.keys() != expected.keys():
        return f"outputs {sorted(answer)} instead of {sorted(expected)}", 0
    reason, ulp = "", 0
    for name, wanted in expected.items():
        got = answer[name]
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            reason = reason or f"{name}: {got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
        elif not _same_bits(got, wanted):
            apart = ulps(got, wanted)
            reason, ulp = reason or f"{name}: other numbers", max(ulp, apart)
    return reason, ulp


def ulps(a: Array, b: Array) -> int:
    """Returns the largest distance of two arrays of floats, in steps between neighbours; NaN counts as equal to NaN.

    >>> ulps(np.array([1.0], np.float32), np.nextafter(np.array([1.0], np.float32), np.float32(2)))
    1
    >>> ulps(np.array([0.0], np.float32), np.array([-0.0], np.float32))
    0
    """
    if not _is_float(a):
        return 0
    differs = ~(_is_nan(a) & _is_nan(b))
    apart = [abs(x - y) for x, y in zip(_ordered(a[differs]), _ordered(b[differs]), strict=True)]
    return max(apart, default=0)


def _ordered(array: Array) -> list[int]:
    # As integers, positive floats have the same order as their values, and negative floats the reverse order.
    bits = np.ascontiguousarray(array).view(_SIGNED[array.dtype.itemsize]).reshape(-1).tolist()
    lowest = -(1 << (8 * array.dtype.itemsize - 1))
    return [n if n >= 0 else lowest - n for n in bits]


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype == object:
        return bool(a.tolist() == b.tolist())
    if _is_float(a):
        bits = np.dtype(f"u{a.dtype.itemsize}")
        same = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
        return bool((same | (_is_nan(a) & _is_nan(b))).all())
    return bool((a == b).all())


def _is_float(array: Array) -> bool:
    # NumPy's dtype.kind is "V" for bfloat16, not "f".
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _is_nan(array: Array) -> Array:
    return np.isnan(array.astype(np.float64))
