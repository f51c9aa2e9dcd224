"""Opens an artifact's manifest into tables, vocabularies and a backend that answers its lookup signatures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from service.core.errors import ArtifactError
from service.core.manifest import LookupFeature, Manifest, SignatureEntry
from service.core.types import (
    ROW_SPLITS_SUFFIX,
    VALUES_SUFFIX,
    WEIGHTS_SUFFIX,
    Array,
    SignatureSpec,
    Tensors,
)
from service.lookup.plan import SignaturePlan, compile_signature
from service.lookup.table import MappedTable, open_tables
from service.lookup.vocabulary import Vocabulary, open_vocabularies

_ID_DTYPES = ("int64", "int32")


class LookupBackend:
    """Runs lookup signatures on mapped tables. Concurrency: any thread."""

    def __init__(self, plans: Mapping[str, SignaturePlan]) -> None:
        self._plans = plans

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Returns [B, D] float32 of each output whose feature was sent."""
        return self._plans[signature_name].run(inputs, outputs)

    def close(self) -> None:
        """Nothing to do: the maps go when the last array that looks into them does."""


@dataclass(frozen=True, slots=True)
class OpenedLookups:
    """What a manifest adds to a SavedModel.

    signatures: every signature of the SavedModel, now with kinds, optional inputs, id ranges and vocabularies.
    lookup_names: those that backend answers.
    """

    tables: Mapping[str, MappedTable]
    signatures: Mapping[str, SignatureSpec]
    lookup_names: frozenset[str]
    backend: LookupBackend


def open_lookups(artifact: Path, manifest: Manifest, signatures: Mapping[str, SignatureSpec]) -> OpenedLookups:
    """Maps an artifact's tables and compiles its lookup signatures.

    Args:
      signatures: as read from the artifact's saved_model.pb.

    Raises:
      ArtifactError: manifest, SavedModel and files do not agree.
    """
    tables = open_tables(artifact, manifest)
    vocabularies = open_vocabularies(artifact, manifest)
    for name, vocabulary in manifest.vocabularies.items():
        for feature_name, feature in manifest.features.items():
            rows = manifest.tables[feature.table].vocabulary_size
            last = max(vocabulary.first_id + vocabulary.size - 1, vocabulary.oov_id or 0)
            if feature.vocabulary == name and last >= rows:
                raise ArtifactError(f"feature {feature_name!r}: vocabulary {name!r} reaches id {last} of {rows} rows")
    described = dict(signatures)
    plans = {}
    feature_tables = {name: feature.table for name, feature in manifest.features.items()}
    for name, entry in manifest.signatures.items():
        spec = signatures.get(name)
        if spec is None:
            raise ArtifactError(f"manifest describes signature {name!r}, which saved_model.pb does not have")
        described[name] = _describe(spec, entry, manifest, vocabularies)
        if entry.kind == "lookup":
            plans[name] = compile_signature(entry, feature_tables, tables)
    return OpenedLookups(tables, described, frozenset(plans), LookupBackend(plans))


def _describe(
    spec: SignatureSpec, entry: SignatureEntry, manifest: Manifest, vocabularies: Mapping[str, Vocabulary]
) -> SignatureSpec:
    inputs = dict(spec.inputs)
    for feature_name, lookup in entry.features.items():
        _check_inputs(spec, lookup, is_lookup=entry.kind == "lookup")
        feature = manifest.features[feature_name]
        inputs[lookup.ids] = replace(
            inputs[lookup.ids],
            vocabulary_size=manifest.tables[feature.table].vocabulary_size,
            vocabulary=vocabularies[feature.vocabulary] if feature.vocabulary else None,
        )
        if entry.kind == "lookup" and lookup.output not in spec.outputs:
            raise ArtifactError(f"signature {spec.name!r} has no output {lookup.output!r}, which its manifest names")
    if entry.kind == "lookup":
        described = {name for f in entry.features.values() for name in (f.ids, f.row_splits, f.weights) if name}
        if set(inputs) != described or set(spec.outputs) != {f.output for f in entry.features.values()}:
            raise ArtifactError(f"signature {spec.name!r}: its inputs or outputs are not all described by the manifest")
        # A lookup answers whichever features it is sent.
        inputs = {name: replace(tensor, is_optional=True) for name, tensor in inputs.items()}
    return replace(spec, kind=entry.kind, inputs=inputs)


def _check_inputs(spec: SignatureSpec, lookup: LookupFeature, *, is_lookup: bool) -> None:
    # The kernels trust row splits, and core.validation knows them by their names: no other name may reach a kernel.
    feature = lookup.ids if lookup.row_splits is None else lookup.ids.removesuffix(VALUES_SUFFIX)
    for name, suffix, dtypes in (
        (lookup.ids, VALUES_SUFFIX, _ID_DTYPES),
        (lookup.row_splits, ROW_SPLITS_SUFFIX, _ID_DTYPES),
        (lookup.weights, WEIGHTS_SUFFIX, ("float32",)),
    ):
        if name is None:
            continue
        found = spec.inputs.get(name)
        if found is None:
            raise ArtifactError(f"signature {spec.name!r} has no input {name!r}, which its manifest names")
        if lookup.row_splits is not None and name != feature + suffix:
            raise ArtifactError(f"signature {spec.name!r}: ragged input {name!r} must be named {feature + suffix!r}")
        if found.dtype not in dtypes:
            raise ArtifactError(
                f"signature {spec.name!r}: input {name!r} is {found.dtype}, expected {' or '.join(dtypes)}"
            )
        if is_lookup and (found.shape is None or len(found.shape) != 1):
            raise ArtifactError(f"signature {spec.name!r}: input {name!r} is not of rank 1")
