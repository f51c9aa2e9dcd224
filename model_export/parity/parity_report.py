"""The results of parity checks: the errors of each signature, and differences between the lookups of two devices.

The manifest holds them under `parity`, and `model-export verify` prints them. This module needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from model_export.errors import ExportError

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
