"""Reads a manifest's `parity` object back into the ParityReport from which it was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_export.parity.parity_report import (
    BitComparison,
    DeviceDifference,
    OutputParity,
    ParityReport,
    SignatureParity,
)


def parity_from_json(data: Mapping[str, Any]) -> ParityReport | None:
    """Makes a ParityReport of a manifest's `parity` object, which maps signatures to comparisons.

    The manifest's format does not define this object, so unknown entries are skipped, never an error. Format 1 has one
    figure per signature instead of one per output. Returns None if no signature is described.
    """
    found = {str(name): _signature(entry) for name, entry in data.items() if isinstance(entry, Mapping)}
    return ParityReport(found) if found else None


def _signature(data: Mapping[str, Any]) -> SignatureParity:
    outputs = data.get("outputs")
    parsed = {str(k): _output(v) for k, v in outputs.items()} if isinstance(outputs, Mapping) else {}
    if not parsed and "max_absolute_error" in data:
        parsed = {"(all outputs)": _output(data)}
    reference = data.get("reference")
    return SignatureParity(
        kind="predict" if data.get("kind") == "predict" else "lookup",
        reference=reference if reference in ("oracle", "recorded answers", "nothing") else "oracle",
        cases=_count(data.get("cases")),
        outputs=parsed,
        refused=_count(data.get("refused")),
        differences=tuple(_difference(d) for d in _list(data.get("differences")) if isinstance(d, Mapping)),
        comparisons=tuple(_comparison(c) for c in _list(data.get("comparisons")) if isinstance(c, Mapping)),
        uncompared=tuple(str(text) for text in _list(data.get("uncompared"))),
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _comparison(data: Mapping[str, Any]) -> BitComparison:
    counts = {name: _count(data.get(name)) for name in ("requests", "refused", "rows", "other_bits")}
    return BitComparison(str(data.get("of", "")), str(data.get("with_", "")), **counts)


def _output(data: Any) -> OutputParity:
    entry = data if isinstance(data, Mapping) else {}
    return OutputParity(
        rows=_count(entry.get("rows")),
        max_absolute_error=_figure(entry.get("max_absolute_error")),
        max_relative_error=_figure(entry.get("max_relative_error")),
    )


def _difference(data: Mapping[str, Any]) -> DeviceDifference:
    example = data.get("example")
    return DeviceDifference(
        feature=str(data.get("feature", "")),
        other=str(data.get("other", "")),
        reason=str(data.get("reason", "")),
        rows=_count(data.get("rows")),
        of_rows=_count(data.get("of_rows")),
        max_absolute=_figure(data.get("max_absolute")),
        example=example if isinstance(example, Mapping) else {},
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _figure(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
