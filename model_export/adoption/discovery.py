"""Finds the tables and features of a foreign SavedModel, and decides which of its signatures are lookups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from model_export.adoption.feature_search import FoundFeature, find_feature
from model_export.adoption.key_graph import FORMS
from model_export.adoption.roles import feature_name
from model_export.adoption.spec import is_nameless_input, table_names, unique, valid
from model_export.answers.opened_graph import OpenedGraph, Read, SignatureGraph, open_graph
from model_export.errors import ExportError
from model_export.graphs.source import ADOPTED_DTYPES
from model_export.parity.oracle import Keys
from model_export.tensorflow_setup import tf
from service.artifact.manifest import FeatureEntry, LookupFeature, Manifest, SignatureEntry, TableEntry
from service.artifact.signature_rules import lookup_rules
from service.errors import ArtifactError
from service.graph.flat_graph import node_of

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class NamedFeature:
    """A feature of the manifest. table: checkpoint key of its variable; keys: its vocabulary, None if it takes ids."""

    table: str
    keys: Keys | None


@dataclass(frozen=True, slots=True)
class FoundSignature:
    """One signature of the SavedModel, with the manifest entry that adopt's search for lookups made for it.

    entry: the signature's entry for the manifest.
    reason: why the signature is no lookup, "" for a lookup.
    is_exact: whether our kernels gave the same bits as the graph for every feature of the entry.
    """

    name: str
    entry: SignatureEntry
    reason: str = ""
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Discovery:
    """The tables, features and signatures that discover found in a SavedModel.

    tables: key in the checkpoint -> name. features: by name. opened: the graph that was searched.
    quantized: inputs whose vectors the graph makes of rows of 8-bit integers, and of rows of scales.
    """

    tables: Mapping[str, str]
    features: Mapping[str, NamedFeature]
    signatures: tuple[FoundSignature, ...]
    opened: OpenedGraph
    quantized: frozenset[str]

    def lookups(self) -> dict[str, LookupFeature]:
        """Returns the lookup of each feature in the first signature that has the feature."""
        found: dict[str, LookupFeature] = {}
        for one in self.signatures:
            found |= {name: lookup for name, lookup in one.entry.features.items() if name not in found}
        return found


def discover(
    artifact: Path,
    progress: Progress = lambda text: None,
    *,
    allow_rounding: bool = False,
    needs_tables: bool = True,
) -> Discovery:
    """Reads a SavedModel's graph and finds its lookups.

    Args:
      progress: called with the name of each signature before the search.
      allow_rounding: accept a lookup whose sums differ from the graph's in the last bits.
      needs_tables: refuse a SavedModel of which no signature reads rows of a variable.

    Raises:
      ExportError: the folder is no SavedModel, or no signature reads rows of a variable; the message lists the
      variables, and says how each is read.
    """
    opened = open_graph(artifact)
    graphs: dict[str, SignatureGraph] = {}
    reasons: dict[str, str] = {}
    for spec, graph in opened.signatures():
        if isinstance(graph, str):
            reasons[spec.name] = graph
        else:
            graphs[spec.name] = graph
    keys = {read.key for graph in graphs.values() for read in graph.reads}
    if not keys and needs_tables:
        raise ExportError(f"{artifact}: {_no_tables(opened, graphs.values(), reasons)}")
    names = table_names(keys, opened.variable_names())
    features = _Features(names)
    found = []
    for name in opened.specs:
        progress(f"signature {name}")
        if name in reasons:
            found.append(FoundSignature(name, SignatureEntry("predict", {}), reasons[name]))
        else:
            found.append(_signature(opened, graphs[name], features, allow_rounding=allow_rounding))
    quantized = frozenset[str]().union(*(graph.quantized_inputs() for graph in graphs.values()))
    return Discovery(names, features.named, tuple(found), opened, quantized)


@dataclass(slots=True)
class _Features:
    """The names of the features found so far, in all signatures. Features of one name share table and vocabulary."""

    tables: Mapping[str, str]
    named: dict[str, NamedFeature] = field(default_factory=dict)

    def manifest(self, opened: OpenedGraph) -> Manifest:
        """Returns what a manifest says of the tables and features, without the places of the tables' bytes."""
        tables = {}
        for key, name in self.tables.items():
            size, dim = opened.variables[key].shape
            tables[name] = TableEntry(key, size, dim, opened.variables[key].dtype, "", 0, 0, 0)
        return Manifest(tables, {name: FeatureEntry(self.tables[one.table]) for name, one in self.named.items()}, {})

    def name(self, found: FoundFeature, taken: Iterable[str]) -> str:
        wanted = NamedFeature(found.read.key, found.keys)
        given = feature_name(found.roles)
        plain = self.tables[found.read.key] if is_nameless_input(given) else valid(given)
        for name in (plain, f"{plain}_{self.tables[found.read.key]}"):
            if name not in taken and self.named.setdefault(name, wanted) == wanted:
                return name
        name = unique(plain, {*self.named, *taken})
        self.named[name] = wanted
        return name


def _signature(
    opened: OpenedGraph, graph: SignatureGraph, features: _Features, *, allow_rounding: bool
) -> FoundSignature:
    found = {}
    ends: dict[Read, str] = {}
    for read in graph.reads:
        feature, ends[read] = find_feature(opened, graph, read, allow_rounding=allow_rounding)
        if feature is not None:
            found[read] = feature
    entries: dict[str, LookupFeature] = {}
    tensors: dict[str, str] = {}
    known: dict[tuple[object, ...], str] = {}
    for feature in found.values():
        same = (feature.read.key, feature.lookup, feature.keys)
        if same not in known:
            known[same] = features.name(feature, entries)
            entries[known[same]] = feature.lookup
        tensors[feature.tensor] = known[same]
    is_exact = all(feature.is_exact for feature in found.values())
    outputs = find_outputs(graph, tensors)
    used = {part for f in entries.values() for part in (f.ids, f.row_splits, f.weights) if part}
    reason = (
        _not_a_lookup(graph, found, ends, outputs, used)
        or _of_two_vocabularies(entries, features.named)
        or _of_shared_parts(entries)
    )
    if not reason and isinstance(outputs, dict):
        alone = {parts[0]: output for output, parts in reversed(outputs.items()) if len(parts) == 1}
        lookups = {name: replace(entry, output=alone.get(name)) for name, entry in entries.items()}
        together = {o: tuple(p) for o, p in outputs.items() if alone.get(p[0]) != o}
        entry = SignatureEntry("lookup", lookups, "cpu", (), together)
        try:
            lookup_rules(graph.spec, entry, features.manifest(opened))
            return FoundSignature(graph.spec.name, entry, "", is_exact)
        except ArtifactError as error:
            reason = error.message
    if graph.otherwise and not graph.reads:
        reason = next(iter(graph.otherwise.values()))
    return FoundSignature(graph.spec.name, SignatureEntry("predict", entries), reason, is_exact)


def _not_a_lookup(
    graph: SignatureGraph,
    found: Mapping[Read, FoundFeature],
    ends: Mapping[Read, str],
    outputs: Mapping[str, list[str]] | str,
    used: set[str],
) -> str:
    if unknown := [read for read in graph.reads if read not in found]:
        return (
            f"TensorFlow computes the ids of variable {unknown[0].key!r}: {ends[unknown[0]] or 'no input holds them'}"
        )
    if isinstance(outputs, str):
        # Where a lookup may have an op, the reason says more why this op's tensor is none.
        ended = next((ends[read] for read in graph.reads if ends[read]), "")
        op = FORMS.get(outputs.split()[-1])
        return f"{outputs}: {ended}" if ended and op is not None and op.rule == "reduced" else outputs
    if rest := sorted(set(graph.spec.inputs) - used):
        return f"input {rest[0]!r} belongs to no lookup"
    if given := sorted(name for name, tensor in graph.spec.inputs.items() if tensor.default is not None):
        return f"input {given[0]!r} has a default, and a lookup answers only what a request names"
    if check := graph.check(used):
        return f"{check} may refuse a request, by a condition that is not known"
    return ""


def _of_two_vocabularies(entries: Mapping[str, LookupFeature], named: Mapping[str, NamedFeature]) -> str:
    """Says which features read one input by different vocabularies, which a lookup can not; "" if none do."""
    first: dict[str, str] = {}
    for name, lookup in entries.items():
        other = first.setdefault(lookup.ids, name)
        if named[other].keys != named[name].keys:
            return f"features {other!r} and {name!r} read input {lookup.ids!r} by different vocabularies"
    return ""


def _of_shared_parts(entries: Mapping[str, LookupFeature]) -> str:
    """Says which features of other ids share row splits or weights; "" if none do.

    A client of a lookup sends each feature's lists by themselves, so two features would need other row splits.
    """
    first: dict[str, str] = {}
    for name, lookup in entries.items():
        for part in filter(None, (lookup.row_splits, lookup.weights)):
            other = first.setdefault(part, name)
            if entries[other].ids != lookup.ids:
                return f"features {other!r} and {name!r} share input {part!r}"
    return ""


def _no_tables(opened: OpenedGraph, graphs: Iterable[SignatureGraph], reasons: Mapping[str, str]) -> str:
    read_by = {key: why for graph in graphs for key, why in graph.otherwise.items()}
    lines = [
        f"  {key}  {list(entry.shape)} {entry.dtype}: {read_by.get(key, 'no signature reads it')}"
        for key, entry in opened.variables.items()
    ]
    others = [
        f"  {key}  {list(entry.shape)} {entry.dtype}: a table is a matrix of {', '.join(ADOPTED_DTYPES)}"
        for key, entry in opened.bundle.items()
        if key not in opened.variables and len(entry.shape) == 2 and entry.dtype != "other"
    ]
    because = "".join(f"\nsignature {name!r}: {why}" for name, why in reasons.items())
    listed = "\n".join([*lines, *others]) if lines or others else "  none"
    return (
        f"no signature reads rows of a variable, so there is nothing to look up.{because}\n"
        f"Matrices of the model:\n{listed}"
    )


# Ops whose output has the same numbers as their input, perhaps in another shape.
_RESHAPES = ("Identity", "Reshape", "Squeeze", "ExpandDims")


def find_outputs(graph: SignatureGraph, tensors: Mapping[str, str]) -> dict[str, list[str]] | str:
    """Returns the names of the features that each output concatenates, or a text that says why an output is no lookup.

    Args:
      tensors: tensor of the graph -> name of the feature that it holds.
    """
    outputs = {}
    for name, tensor in graph.outputs.items():
        parts = _parts(graph, tensor, tensors)
        if isinstance(parts, str):
            return f"output {name!r} is computed from looked-up rows by {parts}"
        outputs[name] = parts
    return outputs


def _parts(graph: SignatureGraph, tensor: str, tensors: Mapping[str, str]) -> list[str] | str:
    """Returns the features that a tensor concatenates; or the name of the op that computes something else."""
    if tensor in tensors:
        return [tensors[tensor]]
    node = graph.flat.nodes[node_of(tensor)]
    inputs = graph.flat.data_inputs(node.name)
    if node.op in _RESHAPES and _tells_its_shape(graph, node, inputs):
        return _parts(graph, inputs[0], tensors)
    if node.op == "ConcatV2" and _is_last_axis(graph, tensor, inputs[-1]):
        parts: list[str] = []
        for part in inputs[:-1]:
            more = _parts(graph, part, tensors)
            if isinstance(more, str):
                return more
            parts += more
        return parts
    return str(node.op)


def _tells_its_shape(graph: SignatureGraph, node: Any, inputs: list[str]) -> bool:
    """Says whether the signature says the shape that an op of _RESHAPES makes: a lookup's outputs are compared with it.

    A Reshape may compute the batch size, but no other size. A Squeeze without axes drops the batch axis of one row.
    """
    if node.op == "Squeeze":
        return bool(node.attr["squeeze_dims"].list.i)
    sizes = graph.flat.nodes[node_of(inputs[-1])]
    if node.op != "Reshape" or sizes.op == "Const":
        return True
    if sizes.op not in ("Pack", "ConcatV2"):
        return False
    first, *others = graph.flat.data_inputs(sizes.name)[: -1 if sizes.op == "ConcatV2" else None]
    constants = [graph.flat.nodes[node_of(other)] for other in others]
    if not constants or any(node.op != "Const" for node in constants):
        return False
    is_open = any((tf.make_ndarray(node.attr["value"].tensor) < 0).any() for node in constants)
    return _is_batch_size(graph, first, inputs[0], is_open=is_open)


def _is_batch_size(graph: SignatureGraph, tensor: str, rows: str, *, is_open: bool) -> bool:
    """Says whether a number is the first size of some rows, or the shape of ids; or of an input, unless another size is
    open: requests may have other numbers of rows in other inputs.
    """
    node = graph.flat.nodes[node_of(tensor)]
    if node.op == "StridedSlice":
        shape, begin = graph.flat.data_inputs(node.name)[:2]
        node, start = graph.flat.nodes[node_of(shape)], graph.flat.nodes[node_of(begin)]
        if start.op != "Const" or tf.make_ndarray(start.attr["value"].tensor).tolist() != [0]:
            return False
    if node.op != "Shape":
        return bool(node.op == "Const")
    (of,) = graph.flat.data_inputs(node.name)
    return of == rows or (not is_open and node_of(of) in graph.placeholders)


def _is_last_axis(graph: SignatureGraph, tensor: str, axis: str) -> bool:
    node = graph.flat.nodes[node_of(axis)]
    # If an output concatenates features, its rank is 2, so axis 1 is its last axis.
    return node.op == "Const" and int(tf.make_ndarray(node.attr["value"].tensor)) in (1, -1)
