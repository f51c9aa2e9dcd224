"""Compares answers of an artifact with expected ones: the errors of each signature, and differences of two devices.

The manifest holds them under `parity`, and `model-export verify` prints them. This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from model_export.errors import ExportError
from service.types import Array

Reference = Literal["oracle", "recorded answers", "nothing"]


@dataclass(frozen=True, slots=True)
class OutputParity:
    """The errors of one output, over all requests whose answers were compared.

    max_relative_error: the largest difference in a request, divided by the request's largest expected value.
    rows: number of compared rows.
    """

    rows: int = 0
    max_absolute_error: float = 0.0
    max_relative_error: float = 0.0


@dataclass(frozen=True, slots=True)
class BitComparison:
    """Answers of the server's own code, compared bit for bit with those of a graph in TensorFlow.

    of: what answered; with_: what it was compared with.
    requests: number of compared requests; refused: how many of them both sides refused.
    rows, other_bits: rows of answers compared, and how many of them differ in some bit.
    """

    of: str
    with_: str
    requests: int = 0
    refused: int = 0
    rows: int = 0
    other_bits: int = 0


@dataclass(frozen=True, slots=True)
class DeviceDifference:
    """Rows of one feature in which two lookups, or two MetaGraphs, differ for the same reason.

    reason: a text that names the manifest's option which causes the difference, e.g. "cut at 4 ids".
    other: the signature (or MetaGraph) that was compared with this one.
    rows, of_rows: number of rows that differ, and of rows compared.
    max_absolute: the largest absolute difference.
    example: ids (and weights) of one differing row, JSON values.
    """

    feature: str
    other: str
    reason: str
    rows: int
    of_rows: int
    max_absolute: float
    example: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SignatureParity:
    """The result of comparing one signature's answers with reference answers.

    reference: what the SavedModel's own signature, run in TensorFlow, was compared with: the numpy oracle for lookups;
        the trained model's recorded answers for predictions; "nothing" if there are no recorded answers.
    cases: number of compared requests; refused: number of requests that the signature rightly refused.
    outputs: errors by output name (a lookup has one output per feature).
    comparisons: answers of the server's own code, compared with graphs in TensorFlow.
    uncompared: one sentence for each part of the signature that nothing was compared with.
    """

    kind: Literal["lookup", "predict"]
    reference: Reference
    cases: int
    outputs: Mapping[str, OutputParity] = field(default_factory=dict)
    refused: int = 0
    differences: tuple[DeviceDifference, ...] = ()
    comparisons: tuple[BitComparison, ...] = ()
    uncompared: tuple[str, ...] = ()

    @property
    def is_compared(self) -> bool:
        answered = sum(one.requests - one.refused for one in self.comparisons)
        return answered > 0 or (self.cases > 0 and self.reference != "nothing")

    @property
    def max_absolute_error(self) -> float:
        return max((output.max_absolute_error for output in self.outputs.values()), default=0.0)

    @property
    def max_relative_error(self) -> float:
        return max((output.max_relative_error for output in self.outputs.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class ParityReport:
    """A report on an artifact: for each signature, by name, the comparison of its answers with reference answers.

    lowered: the signatures of the {serve,tpu} MetaGraph, run on a CPU with tensor-core arithmetic; empty if there is no
        such MetaGraph. Their differences are from the {serve} signature of the same name.
    notes: one sentence per check that was not done, with the reason.
    """

    signatures: Mapping[str, SignatureParity]
    lowered: Mapping[str, SignatureParity] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "signatures": {name: _signature_json(entry) for name, entry in self.signatures.items()},
            "lowered": {name: _signature_json(entry) for name, entry in self.lowered.items()},
            "notes": list(self.notes),
        }

    def manifest_json(self) -> dict[str, Any]:
        return {name: _signature_json(entry) for name, entry in self.signatures.items()}


def _signature_json(parity: SignatureParity) -> dict[str, Any]:
    return {
        **dataclasses.asdict(parity),
        "differences": [dataclasses.asdict(difference) for difference in parity.differences],
        "comparisons": [dataclasses.asdict(comparison) for comparison in parity.comparisons],
        "uncompared": list(parity.uncompared),
        "max_absolute_error": parity.max_absolute_error,
        "max_relative_error": parity.max_relative_error,
    }


class Disagreements(ExportError):
    """Raised if an artifact contradicts its manifest.

    lines: one sentence per fault; report: the comparisons that were possible despite the faults, or None.
    """

    def __init__(self, lines: Sequence[str], report: ParityReport | None = None) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)
        self.report = report


# Tolerance for float32 sums of tens of terms, compared with float64. A wrong row or divisor differs by far more.
RELATIVE_TOLERANCE = 1e-5
# The tolerance is relative to a request's largest expected value, or to this number if that value is smaller.
_SMALLEST_SCALE = 1e-3


class Comparison:
    """The errors of one signature's outputs over its requests; an error beyond the tolerance is a fault."""

    def __init__(self, signature: str, reference: str) -> None:
        self._signature = signature
        self._reference = reference
        self.outputs: dict[str, OutputParity] = {}
        self.faults: list[str] = []

    def add(self, got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
        """Compares a signature's outputs for one request with the expected outputs; skips expected NaN and infinity."""
        if set(got) != set(expected):
            self._fault(f"answers {sorted(got)}, expected {sorted(expected)}")
            return
        for output, wanted in expected.items():
            self._add_output(output, np.asarray(got[output]), np.asarray(wanted))

    def _add_output(self, output: str, actual: Array, wanted: Array) -> None:
        if actual.shape != wanted.shape:
            self._fault(f"output {output!r}: shape {actual.shape}, expected {wanted.shape}")
            return
        before = self.outputs.get(output, OutputParity())
        rows = before.rows + (len(wanted) if wanted.ndim else 1)
        if wanted.dtype.kind not in "fiub" and wanted.dtype.name != "bfloat16":
            if not np.array_equal(actual, wanted):
                self._fault(f"output {output!r} is not what {self._reference} says")
            self.outputs[output] = OutputParity(rows, before.max_absolute_error, before.max_relative_error)
            return
        error, scale = largest_error(actual, wanted)
        # The condition is `not <=` instead of `>`, so that an error of NaN is a fault too.
        if not error <= RELATIVE_TOLERANCE * max(scale, _SMALLEST_SCALE):
            self._fault(f"output {output!r} differs from {self._reference} by {error:.3g}")
        relative = error / scale if scale else 0.0
        self.outputs[output] = OutputParity(
            rows, max(before.max_absolute_error, error), max(before.max_relative_error, relative)
        )

    def _fault(self, text: str) -> None:
        line = f"signature {self._signature!r}, {text}"
        if line not in self.faults:
            self.faults.append(line)


def largest_error(actual: Array, wanted: Array) -> tuple[float, float]:
    is_finite = np.isfinite(wanted)
    found, expected = _float64(actual)[is_finite], _float64(wanted)[is_finite]
    if not expected.size:
        return 0.0, 0.0
    return float(np.abs(found - expected).max()), float(np.abs(expected).max())


def differing_rows(one: Array, other: Array) -> Array:
    """Returns a [B] bool mask: True for rows in which finite numbers of two answers differ beyond the tolerance."""
    if not one.size:
        return np.zeros(len(one), bool)
    is_finite = np.isfinite(one) & np.isfinite(other)
    found, wanted = np.where(is_finite, _float64(one), 0), np.where(is_finite, _float64(other), 0)
    difference = np.abs(found - wanted).reshape(len(one), -1).max(axis=1)
    scale = max(float(np.abs(found).max()), _SMALLEST_SCALE)
    differs: Array = difference > RELATIVE_TOLERANCE * scale
    return differs


def _float64(array: Array) -> Any:
    return array.astype(np.float64)


class BitCounts:
    """Counts the answers of the server's own code that differ from a graph's; a difference beyond the rounding of
    sums, or a refusal of one side only, is a fault.

    Args:
      of, with_: as in BitComparison.
    """

    def __init__(self, signature: str, of: str, with_: str) -> None:
        self._signature = signature
        self.result = BitComparison(of, with_)
        self.faults: list[str] = []

    def add(self, served: Mapping[str, Array] | str, wanted: Mapping[str, Array] | str) -> None:
        """Compares two answers to one request; a refusal is given as its text."""
        counts = self.result
        self.result = replace(counts, requests=counts.requests + 1)
        if isinstance(wanted, str) or isinstance(served, str):
            if isinstance(wanted, str) and isinstance(served, str):
                self.result = replace(self.result, refused=counts.refused + 1)
            elif isinstance(wanted, str):
                self._fault(f"{counts.of} answers what {counts.with_} refuses: {wanted}")
            else:
                self._fault(f"{counts.of} refuses what {counts.with_} answers: {served}")
            return
        comparison = Comparison(self._signature, counts.with_)
        comparison.add(served, wanted)
        for fault in comparison.faults:
            self._fault(f"{counts.of}: {fault.partition(', ')[2]}")
        odd = [output for output in wanted.keys() & served.keys() if _are_odd_apart(served[output], wanted[output])]
        for output in sorted(odd):
            self._fault(f"{counts.of}: output {output!r} is finite where it is not in {counts.with_}, or the reverse")
        dtypes = {output: (served[output].dtype, wanted[output].dtype) for output in wanted.keys() & served.keys()}
        other = {output: pair for output, pair in dtypes.items() if pair[0] != pair[1]}
        for output, (found, expected) in other.items():
            self._fault(f"{counts.of}: output {output!r} is {found}, and {expected} in {counts.with_}")
        if not comparison.faults and not other and not odd:
            differing = [rows_of_other_bits(served[output], wanted[output]) for output in wanted]
            self.result = replace(
                self.result,
                rows=counts.rows + sum(len(rows) for rows in differing),
                other_bits=counts.other_bits + sum(int(rows.sum()) for rows in differing),
            )

    def _fault(self, text: str) -> None:
        line = f"signature {self._signature!r}, {text}"
        if line not in self.faults:
            self.faults.append(line)


def _are_odd_apart(one: Array, other: Array) -> bool:
    """Says whether one of two arrays has NaN or infinity in a place where the other has a finite number."""
    is_float = all(array.dtype.kind == "f" or array.dtype.name == "bfloat16" for array in (one, other))
    return is_float and one.shape == other.shape and bool((np.isfinite(one) != np.isfinite(other)).any())


def rows_of_other_bits(one: Array, other: Array) -> Array:
    """Says for each row of two arrays of one shape whether their bits differ; any NaN equals any other."""
    one, other = np.atleast_1d(one), np.atleast_1d(other)
    if one.dtype.kind in "fV":
        bits = f"u{one.dtype.itemsize}"
        same = np.ascontiguousarray(one).view(bits) == np.ascontiguousarray(other).view(bits)
        # Any NaN equals any other NaN.
        same |= np.isnan(one.astype(np.float64)) & np.isnan(other.astype(np.float64))
    else:
        same = np.asarray(one == other)
    differs: Array = ~same.reshape(len(same), -1).all(axis=1) if same.size else np.zeros(len(same), bool)
    return differs
