"""Result of a comparison: each signature's distance from its expected answers, and differences of two devices.

These objects go into the manifest (`parity`) and out of `model-export verify`; nothing here imports TensorFlow.
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
    """How far one output is from what it should be, over all cases.

    max_relative_error: the largest difference of a case over the largest value expected in it.
    rows: how many were compared.
    """

    rows: int = 0
    max_absolute_error: float = 0.0
    max_relative_error: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceDifference:
    """Rows of one feature that two lookups, or two MetaGraphs, answer differently, and the reason that they share.

    reason: in words, naming the option of the manifest that makes the difference, e.g. "cut at 4 ids".
    other: the signature (or MetaGraph) that it is compared with.
    rows, of_rows: how many differ, of how many compared.
    max_absolute: the largest difference of a number.
    example: ids (and weights) of one such row, JSON values.
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
    """One signature held against its reference.

    reference: the numpy oracle for lookups; the trained model's own answers for predictions; "nothing" where none were
      recorded, so that it was only run.
    cases: how many requests were compared; refused: how many were to be refused, and were.
    outputs: by output name (of a lookup: one per feature).
    """

    kind: Literal["lookup", "predict"]
    reference: Reference
    cases: int
    outputs: Mapping[str, OutputParity] = field(default_factory=dict)
    refused: int = 0
    differences: tuple[DeviceDifference, ...] = ()

    @property
    def max_absolute_error(self) -> float:
        """The largest absolute error over all outputs."""
        return max((output.max_absolute_error for output in self.outputs.values()), default=0.0)

    @property
    def max_relative_error(self) -> float:
        """The largest relative error over all outputs."""
        return max((output.max_relative_error for output in self.outputs.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class ParityReport:
    """All signatures of an artifact, by name.

    lowered: the signatures of its {serve,tpu} MetaGraph, run on a CPU with the tensor-core arithmetic kept; empty where
      it has none. Their differences are against the {serve} signature of the same name.
    notes: what was not checked, and why.
    """

    signatures: Mapping[str, SignatureParity]
    lowered: Mapping[str, SignatureParity] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object with everything."""
        return {
            "signatures": {name: _signature_json(entry) for name, entry in self.signatures.items()},
            "lowered": {name: _signature_json(entry) for name, entry in self.lowered.items()},
            "notes": list(self.notes),
        }

    def manifest_json(self) -> dict[str, Any]:
        """Returns the manifest's parity object: signature -> what was found."""
        return {name: _signature_json(entry) for name, entry in self.signatures.items()}


def _signature_json(parity: SignatureParity) -> dict[str, Any]:
    return {
        **dataclasses.asdict(parity),
        "differences": [dataclasses.asdict(difference) for difference in parity.differences],
        "max_absolute_error": parity.max_absolute_error,
        "max_relative_error": parity.max_relative_error,
    }


class Disagreements(ExportError):
    """An artifact is not what it says.

    lines: every fault found, each a sentence; report: what was compared all the same, None where nothing could be.
    """

    def __init__(self, lines: Sequence[str], report: ParityReport | None = None) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)
        self.report = report
