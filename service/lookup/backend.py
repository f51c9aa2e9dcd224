"""Opens an artifact's manifest into tables, vocabularies and a backend that answers its lookup signatures."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from service.core.errors import ArtifactError
from service.core.manifest import BadIdPolicy, LookupFeature, Manifest, SignatureEntry
from service.core.types import (
    ROW_SPLITS_SUFFIX,
    VALUES_SUFFIX,
    WEIGHTS_SUFFIX,
    Array,
    SignatureSpec,
    TableCounts,
    Tensors,
    TensorSpec,
    Vocabulary,
)
from service.files.guarded_files import GuardedFiles
from service.lookup.plan import SignaturePlan, compile_signature
from service.lookup.row_pool import RowRunner, in_one_piece
from service.lookup.table import MappedTable, open_tables
from service.lookup.vocabulary import OpenedVocabulary, counted_apart, open_vocabularies

_ID_DTYPES = ("int64", "int32")
_BOUNDS: Mapping[BadIdPolicy, Literal["both", "upper", "none"]] = {"error": "both", "drop_negative": "upper"}


class LookupBackend:
    """Runs lookup signatures on mapped tables. Concurrency: any thread.

    vocabularies: by the table that their keys are looked up in.
    """

    def __init__(
        self, plans: Mapping[str, SignaturePlan], vocabularies: Mapping[str, Sequence[OpenedVocabulary]]
    ) -> None:
        self._plans = plans
        self._vocabularies = vocabularies

    def plan(self, signature_name: str) -> SignaturePlan:
        """Returns how a signature is run."""
        return self._plans[signature_name]

    def on_tables(self, tables: Mapping[str, MappedTable]) -> LookupBackend:
        """Returns the same lookups on other tables of the same names and shapes; both count together."""
        plans = {name: plan.on_tables(tables) for name, plan in self._plans.items()}
        return LookupBackend(plans, self._vocabularies)

    def run(self, signature_name: str, inputs: Tensors, outputs: tuple[str, ...]) -> dict[str, Array]:
        """Returns [B, D] float32, of a sequence [B, L, D], of each output whose feature was sent."""
        return self._plans[signature_name].run(inputs, outputs)

    def table_counts(self) -> dict[str, TableCounts]:
        """Returns what was read of each table so far; a table that no lookup reads is not there."""
        totals: dict[str, TableCounts] = {}
        for plan in self._plans.values():
            for table, more in plan.counts():
                totals[table] = TableCounts(*map(operator.add, totals.get(table, TableCounts()), more))
        for table, vocabularies in self._vocabularies.items():
            oov_keys = sum(vocabulary.strangers.total for vocabulary in vocabularies)
            totals[table] = totals.get(table, TableCounts())._replace(oov_keys=oov_keys)
        return totals

    def close(self) -> None:
        """Nothing to do: the maps go when the last array that looks into them does."""


@dataclass(frozen=True, slots=True)
class OpenedLookups:
    """What a manifest adds to a SavedModel.

    signatures: every signature of the SavedModel, now with kinds, optional inputs, id ranges, vocabularies and shapes.
    lookup_names: those that backend answers.
    files: what all of it reads.
    """

    tables: Mapping[str, MappedTable]
    signatures: Mapping[str, SignatureSpec]
    lookup_names: frozenset[str]
    backend: LookupBackend
    files: GuardedFiles


def open_lookups(
    artifact: Path,
    manifest: Manifest,
    signatures: Mapping[str, SignatureSpec],
    runner: RowRunner = in_one_piece,
) -> OpenedLookups:
    """Maps an artifact's tables and compiles its lookup signatures.

    Args:
      signatures: as read from the artifact's saved_model.pb.
      runner: runs the kernels; a RowPool shares large lookups out among threads.

    Raises:
      ArtifactError: manifest, SavedModel and files do not agree.
    """
    files = GuardedFiles()
    tables = open_tables(artifact, manifest, files)
    vocabularies = open_vocabularies(artifact, manifest, files)
    for name, vocabulary in manifest.vocabularies.items():
        for feature_name, feature in manifest.features.items():
            rows = manifest.tables[feature.table].vocabulary_size
            behind = vocabulary.first_id + vocabulary.size + vocabulary.num_oov_buckets
            last = max(behind - 1, vocabulary.oov_id or 0)
            if feature.vocabulary == name and last >= rows:
                raise ArtifactError(f"feature {feature_name!r}: vocabulary {name!r} reaches id {last} of {rows} rows")
    described = dict(signatures)
    plans = {}
    views = _by_feature(manifest, vocabularies)
    feature_tables = {name: feature.table for name, feature in manifest.features.items()}
    for name, entry in manifest.signatures.items():
        spec = signatures.get(name)
        if spec is None:
            raise ArtifactError(f"manifest describes signature {name!r}, which saved_model.pb does not have")
        described[name] = _describe(spec, entry, manifest, views)
        if entry.kind == "lookup":
            plans[name] = compile_signature(entry, feature_tables, tables, runner)
    counted: dict[str, list[OpenedVocabulary]] = {}
    for feature_name, view in views.items():
        of_table = counted.setdefault(feature_tables[feature_name], [])
        if view not in of_table:
            of_table.append(view)
    return OpenedLookups(tables, described, frozenset(plans), LookupBackend(plans, counted), files)


def _by_feature(manifest: Manifest, vocabularies: Mapping[str, OpenedVocabulary]) -> dict[str, OpenedVocabulary]:
    """Returns each feature's vocabulary; those of one table count together what they lack, and no others do."""
    views: dict[tuple[str, str], OpenedVocabulary] = {}
    by_feature = {}
    for name, feature in manifest.features.items():
        if feature.vocabulary:
            key = (feature.vocabulary, feature.table)
            if key not in views:
                views[key] = counted_apart(vocabularies[feature.vocabulary])
            by_feature[name] = views[key]
    return by_feature


def _describe(
    spec: SignatureSpec, entry: SignatureEntry, manifest: Manifest, vocabularies: Mapping[str, Vocabulary]
) -> SignatureSpec:
    inputs, outputs = dict(spec.inputs), dict(spec.outputs)
    for feature_name, lookup in entry.features.items():
        feature = manifest.features[feature_name]
        table = manifest.tables[feature.table]
        vocabulary = vocabularies.get(feature_name)
        _check_inputs(spec, lookup, vocabulary, is_lookup=entry.kind == "lookup")
        inputs[lookup.ids] = replace(
            inputs[lookup.ids],
            vocabulary_size=table.vocabulary_size,
            bounds=_BOUNDS.get(lookup.on_bad_id, "none"),
            vocabulary=vocabulary,
        )
        if entry.kind == "lookup":
            name = lookup.output or feature_name
            outputs[name] = _output(spec, name, lookup.max_sequence_length, table.embedding_dim)
    if entry.kind == "lookup":
        described = {name for f in entry.features.values() for name in (f.ids, f.row_splits, f.weights) if name}
        if set(inputs) != described or set(spec.outputs) != {f.output for f in entry.features.values()}:
            raise ArtifactError(f"signature {spec.name!r}: its inputs or outputs are not all described by the manifest")
        # A lookup answers whichever features it is sent.
        inputs = {name: replace(tensor, is_optional=True) for name, tensor in inputs.items()}
    return replace(spec, kind=entry.kind, inputs=inputs, outputs=outputs)


def _output(spec: SignatureSpec, name: str, length: int | None, dim: int) -> TensorSpec:
    # The manifest's shape is what is answered, and what the limit on answers counts with: a size that the graph leaves
    # open is filled in, and one that it fixes otherwise is refused.
    found = spec.outputs.get(name)
    if found is None:
        raise ArtifactError(f"signature {spec.name!r} has no output {name!r}, which its manifest names")
    shape = (None, dim) if length is None else (None, length, dim)
    saved = shape if found.shape is None else found.shape
    fits = len(saved) == len(shape) and all(
        size in (None, wanted) for size, wanted in zip(saved[1:], shape[1:], strict=True)
    )
    if not fits or found.dtype != "float32":
        raise ArtifactError(
            f"signature {spec.name!r}: output {name!r} is {found.dtype} {_shape(found.shape)}, its manifest says "
            f"float32 {_shape(shape)}"
        )
    return replace(found, shape=(saved[0], *shape[1:]))


def _check_inputs(
    spec: SignatureSpec, lookup: LookupFeature, vocabulary: Vocabulary | None, *, is_lookup: bool
) -> None:
    # The kernels trust row splits, and core.validation knows them by their names: no other name may reach a kernel.
    feature = lookup.ids if lookup.row_splits is None else lookup.ids.removesuffix(VALUES_SUFFIX)
    has_strings = vocabulary is not None and vocabulary.key_dtype == "string"
    for name, suffix, dtypes in (
        (lookup.ids, VALUES_SUFFIX, (*_ID_DTYPES, "string") if has_strings else _ID_DTYPES),
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


def _shape(shape: tuple[int | None, ...] | None) -> str:
    return "of unknown rank" if shape is None else str(["?" if size is None else size for size in shape])
