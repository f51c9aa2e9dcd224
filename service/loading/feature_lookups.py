"""Looks up single features in the native core as requests do, so that the results can be compared with a graph's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from service.artifact.manifest import LookupFeature
from service.artifact.signature_rules import OutputRule
from service.errors import ArtifactError
from service.graph.native_form import NativeGraph, PythonOnly
from service.tables.backend import LookupBackend, OpenedLookups
from service.tables.plan import FeaturePlan, SignaturePlan
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.types import WEIGHTS_SUFFIX, Array, RaggedNames, SignatureSpec, Tensors, TensorSpec, Vocabulary
from service.versions.servable import Servable

_ROWS = "rows"

# Type of a function that looks up one feature, given its name and a request, whose other inputs it ignores. Returns
# [B, D] float32, [B, L, D] for a sequence; raises InvalidRequest.
LookUp = Callable[[str, Tensors], Array]


class CompileNative(Protocol):
    """The function that compiles a servable for the native core, with all signatures that the core can answer.

    Must not raise. lookups: from the version's manifest; None without one. graphs: predict signature -> its graph.
    has_hot_rows: the core samples ids, to find the hot rows of each table. strict_shapes: as in Settings.
    """

    def __call__(
        self,
        servable: Servable,
        lookups: OpenedLookups | None,
        graphs: Mapping[str, NativeGraph | PythonOnly],
        *,
        has_hot_rows: bool = False,
        strict_shapes: bool = False,
    ) -> Servable: ...


@dataclass(frozen=True, slots=True)
class SingleFeature:
    """A feature that is looked up outside of any signature of its model.

    inputs: the specs of the inputs that the feature reads, and perhaps of others.
    vocabulary: maps the keys in the feature's input; None: the input holds ids.
    """

    name: str
    feature: LookupFeature
    table: MappedTable | RemoteTable
    inputs: Mapping[str, TensorSpec]
    vocabulary: Vocabulary | None = None

    def spec(self) -> SignatureSpec:
        feature, size = self.feature, self.table.info.vocabulary_size
        names = [name for name in (feature.ids, feature.row_splits, feature.weights) if name is not None]
        alone = {name: replace(self.inputs[name], shape=(None,), is_optional=True) for name in names}
        alone[feature.ids] = replace(alone[feature.ids], vocabulary_size=size, vocabulary=self.vocabulary, default=None)
        ragged: tuple[RaggedNames, ...] = ()
        if feature.row_splits is not None:
            weights = feature.weights or self.name + WEIGHTS_SUFFIX
            ragged = (RaggedNames(self.name, feature.ids, feature.row_splits, weights),)
        output = TensorSpec(_ROWS, "float32", self._shape)
        return SignatureSpec(
            self.name, "lookup", "", alone, {_ROWS: output}, ragged, output_ids={_ROWS: (feature.ids,)}
        )

    def plan(self) -> SignaturePlan:
        return SignaturePlan(
            {_ROWS: FeaturePlan(self.feature, self.table)}, {_ROWS: OutputRule((_ROWS,), self._shape, "float32")}
        )

    @property
    def _shape(self) -> tuple[int | None, ...]:
        length, dim = self.feature.max_sequence_length, self.table.info.embedding_dim
        return (None, dim) if length is None else (None, length, dim)


def core_lookups(features: Iterable[SingleFeature], lookups: OpenedLookups, compile_native: CompileNative) -> LookUp:
    """Returns the function that looks features up in the native core.
    Raises:
      ArtifactError: the core can not compile the lookups.
    """
    specs = {one.name: one.spec() for one in features}
    plans = {one.name: one.plan() for one in features}
    backend = LookupBackend(plans, lookups.backend.vocabularies)
    alone = replace(lookups, signatures=specs, backend=backend, faults={})
    servable = compile_native(
        Servable("features", 1, specs, dict.fromkeys(specs, backend)), alone, {}, has_hot_rows=False
    )
    native = servable.native
    if native is None or servable.not_run:
        raise ArtifactError(f"the core can not look up its features: {'; '.join(servable.not_run.values())}")

    def look_up(name: str, inputs: Tensors) -> Array:
        sent = {one: inputs[one] for one in specs[name].inputs if one in inputs}
        return native.run(name, sent)[_ROWS]

    return look_up
