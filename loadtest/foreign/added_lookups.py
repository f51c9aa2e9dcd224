"""Compares a lookup signature that `adopt` added with the rows that the original graph computes for the same keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.foreign.kinds import InputSpec, Tensors
from loadtest.foreign.reference import Reference, read_specs

_MANIFEST = Path("assets.extra/lookup_manifest.json")
_PARTS = ("ids", "row_splits", "weights")


@dataclass(frozen=True, slots=True)
class _Feature:
    """A feature of an added lookup.

    signature, wanted: the signature and output of the reference that has the feature's rows.
    names: input of the lookup -> input of the reference's signature.
    is_flat: whether the lookup takes the keys of all rows one after the other, without the shape of the original's.
    row_splits: input of the original with row splits, if the lookup answers empty rows at the end of a request that
        the graph may leave out; otherwise "".
    """

    output: str
    signature: str
    wanted: str
    names: Mapping[str, str]
    is_flat: bool
    row_splits: str = ""


@dataclass(frozen=True, slots=True)
class AddedLookup:
    """An added lookup signature, with a reference of the answers that it should give."""

    name: str
    features: tuple[_Feature, ...]
    reference: Reference

    @property
    def specs(self) -> dict[str, InputSpec]:
        found: dict[str, InputSpec] = {}
        for one in self.features:
            found |= self.reference.signatures[one.signature]
        return found

    def request(self, tensors: Tensors) -> Tensors:
        """Returns a request to the lookup, of a request's inputs to the original model."""
        return {
            own: tensors[given].reshape(-1) if one.is_flat else tensors[given]
            for one in self.features
            for own, given in one.names.items()
        }

    def predict(self, tensors: Tensors) -> Tensors:
        """Returns what the lookup should answer; raises Refused if the original graph refuses one of the inputs."""
        found = {}
        for one in self.features:
            inputs = {given: tensors[given] for given in self.reference.signatures[one.signature]}
            rows = self.reference.predict(one.signature, inputs)[one.wanted]
            if one.row_splits:
                missing = len(tensors[one.row_splits]) - 1 - len(rows)
                rows = np.concatenate([rows, np.zeros((max(0, missing), *rows.shape[1:]), rows.dtype)])
            # A lookup answers float32, whatever the dtype of the table.
            found[one.output] = (rows.reshape(-1, rows.shape[-1]) if one.is_flat else rows).astype(np.float32)
        return found


def added_lookups(adopted: Path, reference: Reference, names: Mapping[str, Any]) -> Iterator[AddedLookup | str]:
    """Yields each lookup that an adopted version has and the original has not; or why it cannot be compared.

    Args:
      reference: a SavedModel with a signature for the rows of each feature.
      names: the original's signatures.
    """
    if not (adopted / _MANIFEST).exists():
        return
    manifest = json.loads((adopted / _MANIFEST).read_text())
    signatures = manifest["signatures"]
    added = {name: entry["features"] for name, entry in signatures.items() if name not in names}
    specs = read_specs(adopted) if added else {}
    for name, features in added.items():
        try:
            matched = [
                _matched(feature, entry, manifest, names, reference, specs[name]) for feature, entry in features.items()
            ]
        except LookupError as error:
            yield f"{name}: {error}"
        else:
            yield AddedLookup(name, tuple(matched), reference)


def _matched(
    feature: str,
    added: Mapping[str, Any],
    manifest: Mapping[str, Any],
    names: Mapping[str, Any],
    reference: Reference,
    own: Mapping[str, InputSpec],
) -> _Feature:
    """Finds the inputs of the original that an added feature stands for.

    They are those of the predict that the feature was found in or, if no predict has it, inputs of the same names.
    """
    entries = [manifest["signatures"].get(name, {"features": {}})["features"].get(feature) for name in names]
    wanted = "combined" if added.get("combiner") else "bounded" if added.get("max_norm") else "rows"
    for entry in [*filter(None, entries), added]:
        having = [name for name, specs in reference.signatures.items() if entry["ids"] in specs]
        for signature in sorted(having, key=lambda name: wanted not in reference.outputs(name)):
            specs = reference.signatures[signature]
            given, taken = specs[entry["ids"]], own[added["ids"]]
            # The server turns keys into rows, by the manifest's vocabulary; the SavedModel's own lookup takes rows.
            if given.dtype.kind != taken.dtype.kind and manifest["features"][feature].get("vocabulary") is None:
                raise LookupError(f"{feature!r} takes {taken.dtype} keys in place of {given.dtype}")
            pairs = {added[part]: entry[part] for part in _PARTS if added.get(part) and entry.get(part)}
            outputs = reference.outputs(signature)
            is_flat = taken.shape is not None and given.shape is not None and len(taken.shape) < len(given.shape)
            keeps = added.get("combiner") and added.get("trailing_empty_rows", "keep") == "keep"
            row_splits = entry["row_splits"] if keeps and entry.get("row_splits") in specs else ""
            told = wanted if wanted in outputs else outputs[0]
            return _Feature(added.get("output") or feature, signature, told, pairs, is_flat, row_splits)
    raise LookupError(f"no signature of the original has the feature {feature!r}")
