"""Finds features for which an artifact's cpu and tensor-core lookups differ, and the option that causes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from model_export.graphs.signature_runner import GraphRefusedError, SignatureRunner
from model_export.parity.comparison import differing_rows
from model_export.parity.oracle import Ids, Keys, RefusedError, looked_up
from model_export.parity.parity_cases import Case
from model_export.parity.parity_report import DeviceDifference
from model_export.parity.saved_table import Rows
from service.artifact.manifest import LookupFeature, Manifest
from service.types import Array, RaggedIds

# Groups of options of LookupFeature. If two lookups of a feature differ in a group, the group is one reason for
# different results.
_OPTIONS = (
    ("mean_divisor",),
    ("max_ids_per_row", "on_too_many_ids"),
    ("on_bad_id", "default_row"),
    ("on_nonpositive_weight",),
    ("max_sequence_length",),
)


@dataclass(slots=True)
class _Found:
    rows: int = 0
    max_absolute: float = 0.0
    example: dict[str, Any] = field(default_factory=dict)


class DeviceComparison:
    def __init__(
        self,
        runner: SignatureRunner,
        manifest: Manifest,
        names: tuple[str, str],
        tables: Mapping[str, Rows],
        keys: Mapping[str, Keys],
    ) -> None:
        self._runner, self._manifest, self._names, self._tables, self._keys = runner, manifest, names, tables, keys
        self._found: dict[tuple[str, str], _Found] = {}
        self._rows: dict[str, int] = {}
        self.faults: list[str] = []

    def differences(self, cases: Iterable[Case]) -> tuple[DeviceDifference, ...]:
        """Sends the requests `cases` to both compared lookups; returns their differences by feature and reason."""
        for case in cases:
            if case.refused:
                self._compare_refusal(case)
            else:
                self._compare(case)
        return tuple(
            DeviceDifference(name, self._names[1], why, f.rows, self._rows.get(name, 0), f.max_absolute, f.example)
            for (name, why), f in sorted(self._found.items())
        )

    def _compare(self, case: Case) -> None:
        try:
            here, there = (self._run(name, case) for name in self._names)
        except GraphRefusedError:
            return
        first, second = (self._manifest.signatures[name].features for name in self._names)
        for name in first.keys() & second.keys():
            one, other = here[first[name].output or name], there[second[name].output or name]
            self._rows[name] = self._rows.get(name, 0) + len(one)
            if one.shape != other.shape:
                self._note(name, f"shape {one.shape[1:]} here, {other.shape[1:]} there", len(one), 0.0, {})
                continue
            differs = np.flatnonzero(differing_rows(one, other))
            if not len(differs):
                continue
            reasons = self._reasons(name, first[name], second[name], case.features[name])
            for row in differs:
                reason = " and ".join(text for text, changes in reasons if changes[row])
                if not reason:
                    self.faults.append(f"feature {name!r}: {self._names[0]} and {self._names[1]} differ unexplained")
                size = float(np.abs(one[row].astype(np.float64) - other[row]).max())
                self._note(name, reason or "unexplained", 1, size, _example(case.features[name], int(row)))

    def _compare_refusal(self, case: Case) -> None:
        try:
            self._run(self._names[1], case)
        except GraphRefusedError:
            return
        feature = next(n for n, f in self._manifest.signatures[self._names[0]].features.items() if self._is_of(f, case))
        self._note(feature, f"refused here, answered there: {case.refused}", 1, 0.0, {})

    @staticmethod
    def _is_of(feature: LookupFeature, case: Case) -> bool:
        return case.refused.startswith(feature.ids + ":")

    def _run(self, name: str, case: Case) -> dict[str, Array]:
        infos = self._runner.signatures[name].inputs
        inputs = case.inputs(self._manifest.signatures[name])
        return self._runner.run(name, {k: _cast(v, infos[k].dtype) for k, v in inputs.items()})

    def _reasons(self, name: str, here: LookupFeature, there: LookupFeature, ids: Ids) -> list[tuple[str, Array]]:
        table, keys = self._tables[self._manifest.features[name].table], self._keys.get(name)
        wanted = looked_up(table, here, ids, keys)
        reasons = []
        for options in _OPTIONS:
            changed = replace(here, **{option: getattr(there, option) for option in options})
            if changed == here:
                continue
            try:
                otherwise = looked_up(table, changed, ids, keys)
            except RefusedError:
                continue
            reasons.append((_words(options[0], here, there), differing_rows(wanted, otherwise)))
        return reasons

    def _note(self, feature: str, reason: str, rows: int, size: float, example: dict[str, Any]) -> None:
        found = self._found.setdefault((feature, reason), _Found(example=example))
        found.rows += rows
        found.max_absolute = max(found.max_absolute, size)


def _words(option: str, here: LookupFeature, there: LookupFeature) -> str:
    if option == "mean_divisor":
        return "mean divided by max(sum of weights, 1)" if here.mean_divisor == "at_least_one" else "mean not bounded"
    if option == "max_ids_per_row":
        return f"cut at {here.max_ids_per_row} ids" if here.max_ids_per_row else "not cut"
    if option == "max_sequence_length":
        return f"cut at {here.max_sequence_length} steps"
    return f"{option} {getattr(here, option)!r}, not {getattr(there, option)!r}"


def _example(ids: Ids, row: int) -> dict[str, Any]:
    if not isinstance(ids, RaggedIds):
        return {"ids": [_json(ids[row])]}
    part = slice(ids.row_splits[row], ids.row_splits[row + 1])
    example: dict[str, Any] = {"ids": [_json(value) for value in ids.values[part]]}
    if ids.weights is not None:
        example["weights"] = [float(weight) for weight in ids.weights[part]]
    return example


def _json(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else int(value)


def _cast(array: Array, dtype: str) -> Array:
    return array if dtype == "string" else array.astype(dtype)
