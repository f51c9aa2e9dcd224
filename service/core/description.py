"""Describes a servable's lookups and graphs for the native core: the JSON that native/src/plan/description.rs reads.

Arrays are named by their places in `Described.buffers`, which the core keeps as long as it reads them. The core answers
all lookups. A signature that it does not run is named with the reason, and its requests are refused: the reasons in the
tensors of a predict are here, those in its graph in service.loading.graph_opening.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from service.artifact.manifest import LookupFeature
from service.artifact.row_labels import RowLabels
from service.artifact.signature_rules import OutputRule
from service.graph.native_form import NativeGraph, PythonOnly
from service.remote.core_clusters import remote_description
from service.tables.backend import OpenedLookups, Paging
from service.tables.guarded_files import GuardedFiles
from service.tables.plan import FeaturePlan, SignaturePlan
from service.tables.remote_table import RemoteTable
from service.tables.table import MappedTable
from service.tables.vocabulary import IntegerVocabulary, OpenedVocabulary, StringVocabulary
from service.types import (
    DEFAULT_SIGNATURE,
    INIT_SIGNATURE,
    VALUES_SUFFIX,
    Array,
    SignatureSpec,
    TableCounts,
    TensorSpec,
    Vocabulary,
)
from service.versions.counts import FeatureIds, summed
from service.versions.servable import sums_of_counts

# The dtypes of tensors that the native core can read and write, as in native/src/plan/inputs.rs.
CORE_DTYPES = frozenset(
    {
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool", "string"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    }
)


class LeftOut(NamedTuple):
    """Why the native core does not run a signature, as native/src/plan/description.rs reads it.

    why: which error its requests get.
    reason: in one line.
    """

    why: Literal["initializes", "no_tensorflow", "can_not_run", "loading"]
    reason: str


def left_out(
    lookups: OpenedLookups | None,
    signatures: Mapping[str, SignatureSpec],
    graphs: Mapping[str, NativeGraph | PythonOnly],
    faults: Mapping[str, str] = MappingProxyType({}),
    *,
    is_loading: bool = False,
) -> dict[str, LeftOut]:
    """Returns the signatures that the native core does not run.

    Args:
      signatures, graphs: the version's signatures and the graphs of those predicts that have a backend, by name.
      faults: signature -> what contradicts its entry in the manifest.
      is_loading: the graphs are not open yet.
    """
    found = {}
    for name, spec in signatures.items():
        if name == INIT_SIGNATURE:
            found[name] = LeftOut("initializes", "")
        elif lookups is not None and name in lookups.lookup_names:
            continue
        elif (graph := graphs.get(name)) is None:
            why = f" (its lookup manifest does not fit: {faults[name]})" if name in faults else ""
            found[name] = LeftOut("loading" if is_loading else "no_tensorflow", why)
        elif fault := graph.reason if isinstance(graph, PythonOnly) else predict_fault(spec):
            found[name] = LeftOut("can_not_run", fault)
    return found


def predict_fault(spec: SignatureSpec) -> str:
    for name, tensor in (*spec.inputs.items(), *spec.outputs.items()):
        if tensor.dtype not in CORE_DTYPES:
            return f'"{name}" is {tensor.dtype}, which no request or answer can carry'
    return ""


ServedTable = MappedTable | RemoteTable
_NO_OCTETS = np.empty(0, np.uint8)


def octets_of(table: ServedTable) -> tuple[Array, Array]:
    if isinstance(table, RemoteTable):
        return _NO_OCTETS, _NO_OCTETS
    _, rows, scales, _, _ = table.place
    return rows, scales


# The native core's counts of one feature: signature, number of the feature in it, ids that were sent, ids without a
# row.
FeatureCounts = tuple[str, int, int, int]
# Most outputs of a signature for Classify.
_MAX_CLASS_OUTPUTS = 2


@dataclass(frozen=True, slots=True)
class Described:
    """A servable's description for the native core (JSON), with the arrays that it names.

    text: the JSON. tables: the tables' names, in the JSON's order. features: signature -> its features, in that order.
    buffers: the arrays, in the order of the JSON's numbers. files: the version's files, if it has lookups.
    key_tables: for each vocabulary, the table that its keys are looked up in.
    openers: functions that open graphs at their first requests, in the order of the JSON's numbers.
    computed: names of the tensors of ids that graphs compute.
    """

    text: str
    tables: tuple[str, ...]
    features: Mapping[str, tuple[FeaturePlan, ...]]
    buffers: tuple[Array, ...]
    files: GuardedFiles | None
    key_tables: tuple[str, ...]
    openers: tuple[Callable[[], str], ...] = ()
    computed: frozenset[str] = frozenset()

    @property
    def arguments(self) -> tuple[str, tuple[Array, ...], Any, list[object]]:
        if self.files is None:
            return self.text, self.buffers, None, []
        return self.text, self.buffers, self.files.mark, self.files.maps

    def buffers_of(self, tables: Mapping[str, ServedTable]) -> list[Array]:
        return [octets for name in self.tables for octets in octets_of(tables[name])]

    def table_counts(self, counts: Iterable[FeatureCounts], strangers: Iterable[int]) -> dict[str, TableCounts]:
        """Adds up the native core's counts of features to counts of tables: table -> counts of reads.

        Args:
          counts: the core's counts of each feature since the servable was compiled.
          strangers: for each vocabulary the number of unknown keys; features that share an input share its keys.
        """
        totals: dict[str, TableCounts] = {}
        for signature, number, ids, missing in counts:
            plan = self.features[signature][number]
            totals = sums_of_counts(totals, {plan.table.info.name: plan.read_counts(ids, missing)})
        for name, oov_keys in zip(self.key_tables, strangers, strict=True):
            totals = sums_of_counts(totals, {name: TableCounts(oov_keys=oov_keys)})
        return totals

    def feature_counts(self, counts: Iterable[FeatureCounts]) -> dict[str, dict[str, FeatureIds]]:
        found = []
        for signature, number, ids, missing in counts:
            plan = self.features[signature][number]
            # No client knows the name of a tensor that the graph computes.
            is_sent = plan.feature.ids not in self.computed
            name = plan.feature.ids.removesuffix(VALUES_SUFFIX) if is_sent else f"computed in {signature}"
            found.append({plan.table.info.name: {name: plan.feature_ids(ids, missing)}})
        return summed(*found)


def describe(
    model: str,
    version: int,
    lookups: OpenedLookups | None,
    signatures: Mapping[str, SignatureSpec] = MappingProxyType({}),
    graphs: Mapping[str, NativeGraph] = MappingProxyType({}),
    *,
    others: Mapping[str, LeftOut] = MappingProxyType({}),
    labels: Mapping[str, RowLabels] = MappingProxyType({}),
    has_hot_rows: bool = False,
    strict_shapes: bool = False,
) -> Described:
    """Describes a version for the native core.

    Args:
      others: the signatures that the core does not run.
      labels: what people call the rows, by table.
      has_hot_rows: the core samples ids, to find the hot rows of each table.
      strict_shapes: the core answers a predict only if its inputs have the shapes that the signature declares.
    """
    writer = _Writer(lookups, labels)
    written = []
    features: dict[str, tuple[FeaturePlan, ...]] = {}
    for name in sorted(lookups.lookup_names) if lookups is not None else ():
        assert lookups is not None
        spec, plan = lookups.signatures[name], lookups.backend.plans[name]
        if name in others:
            continue
        # The native core resolves the name of an input in a JSON request to the first feature of the description that
        # reads the input. If two features read the same ids, the one with weights must come first.
        ordered = sorted(plan.features.items(), key=lambda item: item[1].feature.weights is None)
        features[name] = tuple(feature for _, feature in ordered)
        written.append(writer.signature(spec, plan, ordered))
    for name, graph in sorted(graphs.items()):
        if name not in others:
            features[name] = graph.features
            written.append(writer.predict(signatures[name], graph))
    known = lookups.signatures if lookups is not None else signatures
    document = {
        "model": model,
        "version": version,
        "tables": writer.tables(),
        "vocabularies": writer.vocabularies(),
        "signatures": written,
        "other_signatures": [{"name": name, **other._asdict()} for name, other in sorted(others.items())],
        "has_serving_default": DEFAULT_SIGNATURE in known,
        "has_hot_rows": has_hot_rows,
        "strict_shapes": strict_shapes,
    }
    files = None if lookups is None else lookups.files
    return Described(
        json.dumps(document),
        writer.table_names,
        features,
        tuple(writer.buffers),
        files,
        writer.key_tables,
        tuple(writer.openers),
        frozenset(name for graph in graphs.values() for name in graph.computed),
    )


def _is_flat(plan: SignaturePlan, output: OutputRule) -> bool:
    parts = [plan.features[part] for part in output.parts]
    has_matrices = any(part.ids_rank == 2 or part.feature.max_sequence_length is not None for part in parts)
    return len(output.shape) == 2 and has_matrices


class _Writer:
    """The writer of a description's JSON; it numbers tables, the vocabularies that signatures read, and arrays.

    buffers: the arrays that the JSON names by their places in this list. openers: the functions, by their places, that
      open graphs.
    """

    def __init__(self, lookups: OpenedLookups | None, labels: Mapping[str, RowLabels]) -> None:
        self._labels = labels
        self._tables: Mapping[str, ServedTable] = {} if lookups is None else {**lookups.tables, **lookups.remote}
        self._paging: Paging = "off" if lookups is None else lookups.paging
        self.buffers: list[Array] = []
        self.openers: list[Callable[[], str]] = []
        self._table_numbers = {name: number for number, name in enumerate(self._tables)}
        self._vocabularies: list[OpenedVocabulary] = []
        by_table = {} if lookups is None else lookups.backend.vocabularies
        self._key_tables = {id(one): table for table, vocabularies in by_table.items() for one in vocabularies}

    @property
    def table_names(self) -> tuple[str, ...]:
        return tuple(self._table_numbers)

    @property
    def key_tables(self) -> tuple[str, ...]:
        return tuple(self._key_tables[id(one)] for one in self._vocabularies)

    def tables(self) -> list[dict[str, Any]]:
        return [self._table(self._tables[name]) for name in self._table_numbers]

    def vocabularies(self) -> list[dict[str, Any]]:
        return [self._vocabulary(one) for one in self._vocabularies]

    def signature(
        self, spec: SignatureSpec, plan: SignaturePlan, ordered: Sequence[tuple[str, FeaturePlan]]
    ) -> dict[str, Any]:
        """Returns the entry of one lookup signature in the JSON that describes a servable to the native core.

        ordered: the signature's features, sorted by their numbers.
        """
        inputs = {name: number for number, name in enumerate(spec.inputs)}
        numbers = {name: number for number, (name, _) in enumerate(ordered)}
        return {
            "name": spec.name,
            "kind": "lookup",
            "inputs": [self._input(tensor) for tensor in spec.inputs.values()],
            "features": [self._feature(spec, feature, inputs) for _, feature in ordered],
            "outputs": [
                {
                    "name": name,
                    "dtype": spec.outputs[name].dtype,
                    "parts": [numbers[part] for part in plan.outputs[name].parts],
                    "is_flat": _is_flat(plan, plan.outputs[name]),
                }
                for name in spec.outputs
            ],
            "ragged_names": _ragged_names(spec, inputs),
            "max_rows": plan.max_rows,
            "definition": _definition(spec),
            "graph": None,
        }

    def predict(self, spec: SignatureSpec, graph: NativeGraph) -> dict[str, Any]:
        # A feature in the description names its ids by a number: first the signature's inputs are numbered, then the
        # ids that the graph computes.
        inputs = {name: number for number, name in enumerate((*spec.inputs, *graph.computed))}
        return {
            "name": spec.name,
            "kind": "predict",
            "inputs": [self._input(tensor) for tensor in spec.inputs.values()],
            "features": [
                self._feature(spec, feature, inputs, graph.vocabularies.get(number))
                for number, feature in enumerate(graph.features)
            ],
            "outputs": [
                {
                    "name": name,
                    "dtype": tensor.dtype,
                    "parts": [],
                    "is_flat": False,
                    "row_bytes": _row_bytes(tensor),
                }
                for name, tensor in spec.outputs.items()
            ],
            "ragged_names": _ragged_names(spec, inputs),
            "max_rows": None,
            "num_computed": len(graph.computed),
            "definition": _definition(spec),
            "graph": self._graph(graph),
        }

    def _graph(self, graph: NativeGraph) -> dict[str, Any]:
        if graph.opener is None:
            return dict(graph.document)
        self.openers.append(graph.opener)
        return {"opener": len(self.openers) - 1}

    def _input(self, tensor: TensorSpec) -> dict[str, Any]:
        return {
            "name": tensor.name,
            "tensor_name": tensor.tensor_name,
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "is_optional": tensor.is_optional,
            "default": None if tensor.default is None else self._default(tensor.default),
            "vocabulary_size": tensor.vocabulary_size,
            "bounds": tensor.bounds,
            "vocabulary": self._number_of(tensor.vocabulary),
            "takes_keys": tensor.takes_keys,
            "takes_strings": tensor.takes_strings,
        }

    def _default(self, array: Array) -> dict[str, Any]:
        if array.dtype.kind == "O":
            strings = array.reshape(-1).tolist()
            dtype, octets, lengths = "string", b"".join(strings), [len(string) for string in strings]
        else:
            dtype, octets, lengths = array.dtype.name, array.tobytes(), []
        data = self._buffer(np.frombuffer(octets, np.uint8))
        return {"dtype": dtype, "shape": array.shape, "data": data, "lengths": lengths}

    def _buffer(self, array: Array) -> int | None:
        if not array.size:
            return None
        self.buffers.append(array)
        return len(self.buffers) - 1

    def _table(self, table: ServedTable) -> dict[str, Any]:
        rows, scales = octets_of(table)
        return {
            "name": table.info.name,
            "dtype": table.info.dtype,
            "vocabulary_size": table.info.vocabulary_size,
            "embedding_dim": table.info.embedding_dim,
            "rows": self._buffer(rows),
            "scales": self._buffer(scales),
            "labels": self._labels_of(table.info.name),
            "remote": remote_description(table.layout, table.address, table.default_rows)
            if isinstance(table, RemoteTable)
            else None,
            "paging": self._paging if isinstance(table, MappedTable) else "off",
        }

    def _labels_of(self, table: str) -> dict[str, Any] | None:
        if table not in self._labels:
            return None
        found = self._labels[table]
        return {"text": self._buffer(found.text), "starts": self._buffer(found.starts), "first_row": found.first_row}

    def _vocabulary(self, vocabulary: OpenedVocabulary) -> dict[str, Any]:
        index = vocabulary.index
        return {
            "has_strings": vocabulary.key_dtype == "string",
            "data": self._buffer(index.data),
            "keys": self._buffer(index.keys),
            "slots": self._buffer(index.slots),
            "rows": {
                "first_id": index.first_id,
                "first_bucket": index.first_bucket,
                "num_oov_buckets": index.num_oov_buckets,
                "oov_id": index.oov_id,
                "refuses_unknown_keys": index.refuses_strangers,
                "empty_id": index.empty_id,
                "is_hashed": index.is_hashed,
            },
        }

    def _number_of(self, found: Vocabulary | None) -> int | None:
        if not isinstance(found, StringVocabulary | IntegerVocabulary):
            return None
        for number, known in enumerate(self._vocabularies):
            if known is found:
                return number
        self._vocabularies.append(found)
        return len(self._vocabularies) - 1

    def _feature(
        self, spec: SignatureSpec, plan: FeaturePlan, inputs: Mapping[str, int], vocabulary: Vocabulary | None = None
    ) -> dict[str, Any]:
        lookup = plan.feature
        return {
            "name": _json_name(spec, lookup),
            "ids": inputs[lookup.ids],
            "row_splits": None if lookup.row_splits is None else inputs[lookup.row_splits],
            "weights": None if lookup.weights is None else inputs[lookup.weights],
            "table": self._table_numbers[plan.table.info.name],
            "combiner": lookup.combiner,
            "summation": lookup.summation,
            "on_bad_id": lookup.on_bad_id,
            "default_row": lookup.default_row,
            "at_least_one": lookup.mean_divisor == "at_least_one",
            "positive_only": lookup.on_nonpositive_weight == "drop",
            "max_ids": lookup.max_ids_per_row or 0,
            "truncates": lookup.on_too_many_ids == "truncate",
            "length": lookup.max_sequence_length or 0,
            "vocabulary": self._number_of(vocabulary),
            "dtype": plan.dtype,
            "max_norm": lookup.max_norm,
            "on_empty_row": lookup.on_empty_row,
            "trailing_empty_rows": lookup.trailing_empty_rows,
        }


def _row_bytes(output: TensorSpec) -> int:
    itemsize = output.numpy_dtype.itemsize if output.numpy_dtype else 0
    return itemsize * math.prod(size or 0 for size in (output.shape or ())[1:])


def _definition(spec: SignatureSpec) -> str:
    return spec.definition() if len(spec.inputs) == 1 and len(spec.outputs) <= _MAX_CLASS_OUTPUTS else ""


def _ragged_names(spec: SignatureSpec, inputs: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "feature": one.feature,
            "values": inputs[one.values],
            "row_splits": inputs[one.row_splits],
            "weights": one.weights,
        }
        for one in spec.ragged_names
        if one.values in inputs and one.row_splits in inputs
    ]


def _json_name(spec: SignatureSpec, lookup: LookupFeature) -> str:
    if lookup.row_splits is None:
        return lookup.ids
    same = [one for one in spec.ragged_names if one[1:3] == (lookup.ids, lookup.row_splits)]
    with_weights = [one for one in same if one.weights == lookup.weights]
    # A feature without a name for both is sent as two inputs.
    found = with_weights or same
    return found[0].feature if found else lookup.ids
