"""Cuts signatures of a SavedModel into lookups and towers (the rest of the graph), and opens a session for the towers.

A cut is made only if it is proven to be right: rows of a table are fed only if all readers of the table read single
rows, and combined rows of a feature only if the graph's own tensor equals the lookup to the bit on probe requests. A
signature that can not be cut is run with the whole graph, which is then loaded too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from service.artifact import tensor_proto
from service.artifact.signature_def import read_meta_graph
from service.errors import ArtifactError, InvalidRequest
from service.graph.claimed_ops import Claimed, layout_sizes, treats_alike
from service.graph.flat_graph import FlatGraph, canonical, constant_of, flatten, node_of
from service.graph.graph_session import CoreSession, DenseGraph, DenseSession, GraphError
from service.graph.joined_rows import joined_rows
from service.graph.library import op_definition
from service.graph.probes import MOST_LENGTH, Constants, has_same_bits, requests
from service.graph.restoring import repair_handles, restored_otherwise, saved_tensors
from service.graph.sparse import SparseNames, read_sparse_names
from service.graph.table_reads import (
    NotProven,
    TableRead,
    acts,
    bottlenecks,
    check_kept,
    has_effect,
    needed_nodes,
    table_reads,
    written_variables,
)
from service.graph.tower import (
    Claim,
    ComputedRows,
    CutSignature,
    FeatureRows,
    InputRows,
    RowSource,
    TowerBackend,
    request_feed,
    rows_of,
)
from service.types import Array, GraphThreads, SignatureSpec, Table, Tensors

# Maximum number of elements in a constant between a feature's inputs and its lookup. A larger constant may map ids to
# other ids, which the probe requests could miss.
_MOST_NUMBERS = 8
# Numbers from here on stand for the end of a slice that has none.
_OPEN_END = 2**31 - 1
# Ops that hold a regular expression.
REGEX_OPS = frozenset({"StaticRegexReplace", "StaticRegexFullMatch"})
# DataType numbers of the constants that have a form in numpy.
_READ_DTYPES = frozenset({tensor_proto.STRING, *tensor_proto.NUMPY_DTYPES})
_VOCABULARIES = frozenset({"HashTableV2", "LookupTableFindV2", "LookupTableSizeV2"})


def find_lookup(
    claim: Claim,
    read: TableRead,
    candidates: Sequence[str],
    *,
    flat: FlatGraph,
    spec: SignatureSpec,
    table: Table,
    session: CoreSession,
    feed: Callable[[Tensors], dict[str, Array]],
    look_up: Callable[[str, Tensors], Array],
    sparse: Mapping[str, SparseNames],
) -> str | None:
    """Returns the last candidate tensor whose bits equal those of a feature's lookup on all probes.

    Returns None if there is no such tensor: a sum that is added up in another order stays with the graph.

    Args:
      candidates: tensors that depend on the read, nearest first.
      feed: converts a request to values of the graph's tensors.
      look_up: looks up the feature of a claim, by the claim's name, for a request; raises InvalidRequest.
    """
    has_keys, claimed = claim.vocabulary is not None, _claimed(claim, spec, sparse)
    candidates = [tensor for tensor in candidates if treats_alike(flat, tensor, read, claimed)]
    known = [(t, found) for t in candidates if (found := _constants(flat, t, read, has_keys=has_keys)) is not None]
    sizes = layout_sizes(flat, known[-1][0], read, claimed) if known else set()
    if not known or any(MOST_LENGTH < size < _OPEN_END for size in sizes):
        return None
    tensors = [tensor for tensor, _ in known]
    alive = list(tensors)
    constants = replace(known[-1][1], sizes=tuple(sorted(sizes)))
    for request in requests(spec, claim.feature, table.info.vocabulary_size, constants, claim.keys):
        fed = feed(request)
        try:
            ids = session.run([read.ids], fed)[0]
            computed = session.run(tensors, fed | {read.rows: rows_of(ids, table)})
            wanted = look_up(claim.name, request)
        except (GraphError, InvalidRequest, ValueError):
            return None
        arrays = dict(zip(tensors, computed, strict=True))
        alive = [tensor for tensor in alive if has_same_bits(wanted, arrays[tensor])]
    return alive[-1] if alive else None


def _claimed(claim: Claim, spec: SignatureSpec, sparse: Mapping[str, SparseNames]) -> Claimed:
    feature = claim.feature
    own = [name for name in (feature.ids, feature.row_splits, feature.weights) if name is not None]
    inputs = {node_of(spec.inputs[name].tensor_name) for name in own if spec.inputs[name].tensor_name}
    keys = node_of(spec.inputs[feature.ids].tensor_name)
    for names in sparse.values():
        if node_of(names.values) == keys:
            inputs |= {node_of(names.indices), node_of(names.dense_shape)}
    return Claimed(keys, inputs, claim.is_described, feature.max_norm)


def _constants(flat: FlatGraph, tensor: str, read: TableRead, *, has_keys: bool) -> Constants | None:
    """Returns the constants that the graph uses when it computes a tensor from a feature's inputs.

    Returns None if an op between the inputs and the tensor is no arithmetic, or a constant has too many numbers.

    Args:
      has_keys: whether a vocabulary may lie there too; the probe requests hold all its keys.
    """
    integers: set[int] = set()
    floats: set[float] = set()
    texts: set[bytes] = set()
    between = flat.ancestors([tensor], cut=frozenset({read.rows})) | flat.ancestors([read.ids])
    for name in between:
        node = flat.nodes[name]
        if node.op == "Const":
            if node.attr["dtype"].type not in _READ_DTYPES:
                return None
            numbers = constant_of(node)
            if numbers.size > _MOST_NUMBERS and numbers.dtype != object:
                return None
            if numbers.dtype.kind == "i":
                integers.update(numbers.reshape(-1).tolist())
            elif numbers.dtype.kind == "f":
                floats.update(numbers.reshape(-1).tolist())
            elif numbers.dtype == object and numbers.size <= _MOST_NUMBERS:
                texts.update(numbers.reshape(-1).tolist())
        elif node.op in REGEX_OPS:
            texts.update((node.attr["pattern"].s, node.attr["rewrite"].s))
        elif has_keys and node.op in _VOCABULARIES:
            continue
        elif node.op != "Placeholder" and not _is_arithmetic(node):
            return None
    return Constants(tuple(sorted(integers)), tuple(sorted(floats)), tuple(sorted(texts)))


def _is_arithmetic(node: Any) -> bool:
    op = op_definition(node.op)
    calls = any(value.func.name or value.list.func for value in node.attr.values())
    return op is not None and not op.is_stateful and not calls


logger = logging.getLogger(__name__)

# Table dtypes without scales: a graph reads their rows as they are stored, so that stored rows can be fed.
_FED_DTYPES = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True)
class MappedTables:
    """An artifact's mapped tables, and the manifest's claims on the lookups of its graphs.

    tables: by name. keys: key in the checkpoint -> table. claims: signature -> the features that its graph may look up.
    look_up: looks up the feature of a claim, as find_lookup() takes it.
    """

    tables: Mapping[str, Table]
    keys: Mapping[str, str]
    claims: Mapping[str, Sequence[Claim]]
    look_up: Callable[[str, Tensors], Array]


@dataclass(slots=True)
class _Candidate:
    """A signature that is being cut into lookups and a tower (the rest of its graph). outputs: name -> tensor."""

    spec: SignatureSpec
    flat: FlatGraph
    outputs: dict[str, str]
    needed: set[str]
    effects: tuple[str, ...]
    reads: list[TableRead]
    follow: Callable[[str], bool]


def open_tower(
    artifact: Path,
    signatures: Mapping[str, SignatureSpec],
    mapped: MappedTables,
    tags: frozenset[str],
    threads: GraphThreads,
) -> TowerBackend | None:
    """Cuts lookups out of the given signatures' graphs, and opens a session for the rest; None if none can be cut.

    Raises:
      ArtifactError: TensorFlow can not load the towers.
    """
    try:
        meta_graph = read_meta_graph(artifact / "saved_model.pb", tags)
        repair_handles(meta_graph, artifact)
        saved = saved_tensors(meta_graph)
        # A variable that is one part of a partitioned variable is left out: its row numbers are not the row numbers of
        # the whole table.
        handles = {h: mapped.keys[one.key] for h, one in saved.items() if one.key in mapped.keys and not one.part}
        states = restored_otherwise(meta_graph), written_variables(meta_graph)
        candidates = _candidates(artifact, meta_graph, signatures, handles, mapped, states)
        if not any(candidate.reads for candidate in candidates):
            if candidates:
                raise NotProven("no other signature reads a table of the manifest")
            return None
        dense = DenseGraph(meta_graph, handles)
        for candidate in candidates:
            of_rows = {read.rows: mapped.tables[read.table].info.dtype for read in candidate.reads}
            placeholders = {node_of(rows): tensor_proto.dtype_number(dtype) for rows, dtype in of_rows.items()}
            dense.add(candidate.flat, _left(candidate), placeholders, candidate.follow)
        keeps_state = any(candidate.effects for candidate in candidates)
        opened = dense.open(artifact, saved, threads, may_open_twice=not keeps_state)
    except (NotProven, ArtifactError, KeyError) as error:
        logger.info("the whole graph is run", extra={"path": str(artifact), "reason": str(error)})
        return None
    except Exception as error:
        # If the lookups can not be cut out of the graph, no error is raised, because only speed is lost: TensorFlow
        # then runs the whole graph. If the model itself has a fault, the load of the whole graph raises an error.
        logger.warning("the whole graph is run", extra={"path": str(artifact), "reason": str(error)})
        return None
    try:
        sparse = read_sparse_names(meta_graph)
        cuts = {c.spec.name: _cut(c, opened, mapped, sparse.get(c.spec.name, {})) for c in candidates}
    except Exception:
        opened.session.close()
        raise
    return TowerBackend(opened.session, cuts, sparse)


def _candidates(
    artifact: Path,
    meta_graph: Any,
    signatures: Mapping[str, SignatureSpec],
    handles: Mapping[str, str],
    mapped: MappedTables,
    states: tuple[frozenset[str], frozenset[str]],
) -> list[_Candidate]:
    found = []
    for name, spec in signatures.items():
        try:
            found.append(_candidate(meta_graph, spec, handles, mapped, states))
        except (NotProven, ArtifactError) as error:
            logger.info(
                "the whole graph is run", extra={"path": str(artifact), "signature": name, "reason": str(error)}
            )
    return found


def _candidate(
    meta_graph: Any,
    spec: SignatureSpec,
    handles: Mapping[str, str],
    mapped: MappedTables,
    states: tuple[frozenset[str], frozenset[str]],
) -> _Candidate:
    tensors = [*spec.inputs.values(), *spec.outputs.values()]
    if any(not tensor.tensor_name and not _is_ragged_part(spec, tensor.name) for tensor in tensors):
        raise NotProven("an input or output is sparse or composite")
    flat = flatten(meta_graph.graph_def, [tensor.tensor_name for tensor in spec.outputs.values()])
    roots = [flat.resolved(tensor.tensor_name) for tensor in spec.outputs.values()]
    ragged = {name for names in spec.ragged_names for name in (names.values, names.row_splits)}
    checked = frozenset(node_of(spec.inputs[name].tensor_name) for name in ragged)
    follow = has_effect(flat, checked)
    needed = needed_nodes(flat, roots, follow)
    check_kept(needed, *states)
    reads = table_reads(flat, needed, handles)
    for read in reads:
        if (dtype := mapped.tables[read.table].info.dtype) not in _FED_DTYPES:
            # A read of an int8 or int4 table can not be cut out of the graph: the table's scales are a variable of the
            # graph, which deltas would not change.
            raise NotProven(f"table {read.table!r} is of {dtype}")
    effects = tuple(sorted(name for name in needed if acts(flat, name, checked)))
    given = {read.rows for read in reads}
    outputs = {}
    for (name, tensor), root in zip(spec.outputs.items(), roots, strict=True):
        # An output that is itself fed gets a new node, because TensorFlow can not fetch a fed tensor.
        is_fed = root in given or flat.nodes[node_of(root)].op == "Placeholder"
        if is_fed:
            outputs[name] = flat.pass_on(f"tower/{spec.name}/{name}", root, tensor_proto.dtype_number(tensor.dtype))
            needed.add(node_of(outputs[name]))
        else:
            outputs[name] = root
    return _Candidate(spec, flat, outputs, needed, effects, reads, follow)


def _is_ragged_part(spec: SignatureSpec, name: str) -> bool:
    return any(name in names for names in spec.ragged_names)


def _left(candidate: _Candidate) -> set[str]:
    """Returns the nodes that remain when a graph's reads of tables are cut out: they compute ids, or the outputs."""
    flat = candidate.flat
    given = {node_of(read.rows) for read in candidate.reads}
    cut = frozenset(read.rows for read in candidate.reads)
    ends = [
        *candidate.outputs.values(),
        *(f"^{name}" for name in candidate.effects),
        *(read.ids for read in candidate.reads),
    ]
    return flat.ancestors(ends, cut=cut, follow=candidate.follow) | given


def _cut(
    candidate: _Candidate, opened: DenseSession, mapped: MappedTables, sparse: Mapping[str, SparseNames]
) -> CutSignature:
    spec, flat = candidate.spec, candidate.flat
    to_feed, names = request_feed(spec, sparse)

    def feed(request: Tensors) -> dict[str, Array]:
        # Inputs that no node of the dense graph reads are left out, because the session's graph has no placeholders for
        # them.
        fed = dict(zip(names, to_feed(request), strict=True))
        return {tensor: array for tensor, array in fed.items() if node_of(tensor) in opened.nodes}

    sources: dict[str, RowSource] = {}
    for read in candidate.reads:
        tensor, source = _source(candidate, read, opened, mapped, feed, sparse)
        sources[tensor] = source
    id_tensors = tuple(sorted({source.tensor for source in sources.values() if isinstance(source, ComputedRows)}))
    ends = [*candidate.outputs.values(), *(f"^{name}" for name in candidate.effects)]
    before = flat.ancestors(id_tensors, cut=frozenset(sources), follow=candidate.follow)
    apart = flat.ancestors(ends, cut=frozenset(sources), follow=candidate.follow)
    carried = _carried(candidate, apart, before)
    shapes = {tensor: source.row_shape for tensor, source in sources.items()}
    fed = joined_rows(flat, ends, shapes, candidate.outputs.values(), given=carried, follow=candidate.follow)
    left, left_apart = (
        flat.ancestors(ends, cut=frozenset(cut) | carried, follow=candidate.follow) for cut in (fed, sources)
    )
    logger.info(
        "lookups are cut from the graph",
        extra={
            "signature": spec.name,
            "combined": sum(isinstance(source, FeatureRows) for source in sources.values()),
            "single_rows": sum(not isinstance(source, FeatureRows) for source in sources.values()),
        },
    )
    return CutSignature(
        spec,
        candidate.outputs,
        sources,
        fed,
        id_tensors,
        tuple(sorted(carried)),
        frozenset(name for name in names if node_of(name) in before),
        frozenset(name for name in names if node_of(name) in left),
        frozenset(name for name in names if node_of(name) in left_apart),
        candidate.effects,
    )


def _carried(candidate: _Candidate, left: set[str], before: set[str]) -> frozenset[str]:
    """Returns the tensors that a signature's first run (ids) computes from the request for its second run (outputs)."""
    nodes = candidate.flat.nodes
    from_request = {name for name in before if nodes[name].op != "Placeholder" and _sees_request(candidate, name)}
    return frozenset(
        tensor
        for name in left - before
        for tensor in candidate.flat.data_inputs(name)
        if node_of(tensor) in from_request
    )


def _sees_request(candidate: _Candidate, name: str) -> bool:
    return any(candidate.flat.nodes[n].op == "Placeholder" for n in candidate.flat.ancestors([f"{name}:0"]))


def _source(
    candidate: _Candidate,
    read: TableRead,
    opened: DenseSession,
    mapped: MappedTables,
    feed: Callable[[Tensors], dict[str, Array]],
    sparse: Mapping[str, SparseNames],
) -> tuple[str, RowSource]:
    spec, flat, table = candidate.spec, candidate.flat, mapped.tables[read.table]
    ids = read.ids
    while flat.nodes[node_of(ids)].op == "Identity":
        ids = flat.data_inputs(node_of(ids))[0]
    direct = next((n for n, t in spec.inputs.items() if t.tensor_name and canonical(t.tensor_name) == ids), None)
    places = bottlenecks(flat, candidate.needed, candidate.outputs.values(), read.rows, candidate.follow)
    for claim in mapped.claims.get(spec.name, ()):
        if claim.table != read.table or table.info.dtype != "float32" or not _may_stand_for(claim, spec, direct):
            continue
        found = find_lookup(
            claim,
            read,
            places,
            flat=flat,
            spec=spec,
            table=table,
            session=opened.session,
            feed=feed,
            look_up=mapped.look_up,
            sparse=sparse,
        )
        if found is not None:
            return found, FeatureRows(claim, table)
    dim = table.info.embedding_dim
    if direct is not None:
        return read.rows, InputRows(direct, table, _row_shape(spec.inputs[direct].shape, dim))
    return read.rows, ComputedRows(read.ids, table, _row_shape(opened.session.shape(read.ids), dim))


def _row_shape(ids: tuple[int | None, ...] | None, dim: int) -> tuple[int, ...] | None:
    """Returns the shape of the table rows that one row of ids reads; None if the number of ids in a row is unknown."""
    if not ids or None in ids[1:]:
        return None
    return (*(size or 0 for size in ids[1:]), dim)


def _may_stand_for(claim: Claim, spec: SignatureSpec, direct: str | None) -> bool:
    feature, ids = claim.feature, spec.inputs[claim.feature.ids]
    if feature.max_ids_per_row is not None or (feature.row_splits is None and len(ids.shape or ()) != 1):
        return False
    if claim.vocabulary is not None:
        return True
    if ids.takes_keys or ids.dtype == "string":
        return False
    if claim.is_described or feature.on_bad_id in ("drop", "default_row", "clamp"):
        return True
    # With the policy "error", the lookup may stand for the graph only if the gather op reads the input itself: for an
    # id without a row, the graph's error quotes the ids that the op reads, and the lookup's error quotes the ids of the
    # request.
    return feature.on_bad_id == "error" and direct == feature.ids
