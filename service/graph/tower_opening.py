"""Cuts signatures of a SavedModel into lookups and towers (the rest of the graph), and opens a session for the towers.

A cut is made only if it is proven to be right: rows of a table are fed only if all readers of the table read single
rows, and combined rows of a feature only if the graph's own tensor equals the lookup to the bit on probe requests. A
signature that can not be cut is run with the whole graph, which is then loaded too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from service.artifact import tensor_proto
from service.artifact.manifest import LookupFeature
from service.artifact.signature_def import read_meta_graph
from service.errors import ArtifactError, InvalidRequest
from service.graph.claimed_ops import Claimed, ClaimedOps, is_placeholder, layout_sizes, sized_by
from service.graph.flat_graph import FlatGraph, canonical, constant_of, flatten, node_of
from service.graph.graph_session import DenseGraph, DenseSession, Fed, GraphError, Preparation, Shape
from service.graph.joined_rows import joined_rows
from service.graph.library import op_definition
from service.graph.probes import MOST_LENGTH, Constants, has_same_bits, requests
from service.graph.restoring import repair_handles, restored_otherwise, saved_tensors
from service.graph.sparse import SparseNames, read_sparse_names
from service.graph.table_reads import (
    CONTROL_CALLS,
    NotProven,
    TableRead,
    acting,
    bottlenecks,
    changing,
    check_kept,
    has_effect,
    initialized_variables,
    needed_nodes,
    readers_of,
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
    part_of,
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
    claimed: Claimed,
    cutting: _Cutting,
    table: Table,
) -> tuple[str, FeatureRows] | None:
    """Returns the last candidate tensor whose bits equal those of a feature's lookup on all probes, and the lookup.

    Returns None if there is no such tensor: a sum that is added up in another order stays with the graph.

    Args:
      candidates: tensors that depend on the read, each on the one before it, nearest first.
    """
    flat, has_keys = cutting.candidate.flat, claim.vocabulary is not None
    tensors = cutting.ops.alike(candidates, read, claimed)
    constants = None
    # What is not known of one tensor is not known of those behind it, either.
    while tensors and (constants := _constants(flat, tensors[-1], read, has_keys=has_keys)) is None:
        tensors.pop()
    decisions = list[str]()
    while tensors and not cutting.ops.are_few(decisions := cutting.ops.size_decisions(tensors[-1], read, claimed)):
        tensors.pop()
    sizes = layout_sizes(flat, tensors[-1], read, claimed) if tensors else set()
    if constants is None or any(MOST_LENGTH < size < _OPEN_END for size in sizes):
        return None
    constants = replace(constants, sizes=tuple(sorted(sizes)), are_compared=bool(decisions))
    own = _own(claim.feature) | {*sized_by(flat, tensors[-1], read, claimed)}
    spec, sparse = part_of(cutting.candidate.spec, cutting.sparse, own)
    to_feed, names = request_feed(spec, sparse)
    alive = list(tensors)
    try:
        with cutting.open_part(read, tensors, table) as opened:
            for request in requests(spec, claim.feature, table.info.vocabulary_size, constants, claim.keys):
                fed = dict(zip(names, to_feed(request), strict=True))
                # An input that no node reads has no placeholder in the session's graph.
                fed = {tensor: array for tensor, array in fed.items() if node_of(tensor) in opened.nodes}
                ids = opened.session.run([read.ids], fed)[0]
                computed = opened.session.run(tensors, fed | {read.rows: rows_of(ids, table)})
                wanted = cutting.mapped.look_up(claim.name, request)
                arrays = dict(zip(tensors, computed, strict=True))
                alive = [tensor for tensor in alive if has_same_bits(wanted, arrays[tensor])]
    except (GraphError, InvalidRequest, NotProven, ValueError):
        return None
    return (alive[-1], FeatureRows(claim, table, sized_by(flat, alive[-1], read, claimed))) if alive else None


def _own(feature: LookupFeature) -> frozenset[str]:
    return frozenset(name for name in (feature.ids, feature.row_splits, feature.weights) if name is not None)


def _claimed(claim: Claim, spec: SignatureSpec, sparse: Mapping[str, SparseNames]) -> Claimed:
    feature = claim.feature
    own = _own(feature)
    inputs = {node_of(spec.inputs[name].tensor_name) for name in own if spec.inputs[name].tensor_name}
    keys = node_of(spec.inputs[feature.ids].tensor_name)
    for names in sparse.values():
        if node_of(names.values) == keys:
            inputs |= {node_of(names.indices), node_of(names.dense_shape)}
    rows = {n: tensor for n in spec.row_inputs - own if (tensor := spec.inputs[n]).shape == (None,)}
    beside = {n: node_of(t.tensor_name) for n, t in rows.items() if t.tensor_name and not t.is_optional}
    weights = frozenset({node_of(spec.inputs[feature.weights].tensor_name)} if feature.weights else ())
    return Claimed(keys, inputs, beside, claim.is_described, feature.combiner, feature.max_norm, weights)


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

    tables: by name. remote: names of those in clusters. keys: key in the checkpoint -> table.
    claims: signature -> the features that its graph may look up.
    look_up: looks up the feature of a claim, by the claim's name, for a request; raises InvalidRequest.
    """

    tables: Mapping[str, Table]
    remote: Collection[str]
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


@dataclass(frozen=True, slots=True)
class _Cutting:
    """The graph, tables and claims in which the sources of a signature's rows are searched.

    readers: node of the signature -> the nodes that read it. claims: those of the signature, with their inputs.
    shape: returns the shape of a tensor as far as the whole graph says it.
    open_session: opens a session of nodes of a graph, as DenseGraph.open() does.
    """

    candidate: _Candidate
    mapped: MappedTables
    sparse: Mapping[str, SparseNames]
    ops: ClaimedOps
    readers: Mapping[str, Sequence[str]]
    claims: Sequence[tuple[Claim, Claimed]]
    shape: Callable[[str], Shape | None]
    open_session: Callable[[_Candidate, set[str], Mapping[str, Fed]], DenseSession]

    @contextmanager
    def open_part(self, read: TableRead, tensors: Sequence[str], table: Table) -> Iterator[DenseSession]:
        """Opens a session that computes some tensors behind a read, and only them.

        TensorFlow copies the whole graph of a session for each set of tensors that is fed and fetched.
        """
        flat, follow = self.candidate.flat, self.candidate.follow
        fed = {node_of(read.rows): Fed(tensor_proto.dtype_number(table.info.dtype), self.shape(read.rows))}
        left = flat.ancestors([*tensors, read.ids], cut=frozenset({read.rows}), follow=follow)
        opened = self.open_session(self.candidate, left | fed.keys(), fed)
        try:
            yield opened
        finally:
            opened.session.close()


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
        initialized = initialized_variables(meta_graph)
        # A variable that is one part of a partitioned variable is left out: its row numbers are not the row numbers of
        # the whole table.
        handles = {
            handle: mapped.keys[one.key]
            for handle, one in saved.items()
            if one.key in mapped.keys and not one.part and handle not in initialized
        }
        states = restored_otherwise(meta_graph), written_variables(meta_graph)
        candidates = _candidates(artifact, meta_graph, signatures, handles, mapped, states)
        if not any(candidate.reads for candidate in candidates):
            if candidates:
                raise NotProven("no other signature reads a table of the manifest")
            return None
        preparation = Preparation(meta_graph)

        def collected(candidate: _Candidate, nodes: set[str], placeholders: Mapping[str, Fed]) -> DenseGraph:
            part = DenseGraph(meta_graph, handles, preparation)
            part.add(candidate.flat, nodes, placeholders, candidate.follow)
            return part

        def open_session(candidate: _Candidate, nodes: set[str], placeholders: Mapping[str, Fed]) -> DenseSession:
            return collected(candidate, nodes, placeholders).open(artifact, saved, threads)

        sparse, cuts = read_sparse_names(meta_graph), list[tuple[CutSignature, _Left]]()
        for one in candidates:
            with closing(collected(one, one.needed, {}).open_outline()) as outline:
                cuts.append(_cut(one, mapped, sparse.get(one.spec.name, {}), outline.shape, open_session))
        # The session has only what a run may compute: TensorFlow places and copies the whole graph before the first.
        dense = DenseGraph(meta_graph, handles, preparation)
        computed = {name for _, left in cuts for name in left.nodes}
        for candidate, (_, left) in zip(candidates, cuts, strict=True):
            fed = {name: dtype for name, dtype in left.fed.items() if name not in computed}
            dense.add(candidate.flat, left.nodes | fed.keys(), fed, candidate.follow)
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
    return TowerBackend(opened.session, {cut.spec.name: cut for cut, _ in cuts}, sparse)


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
    if flat.compiled:
        # The last bits of a compiled function differ from those of its ops.
        raise NotProven(f"XLA compiles the function of node {min(flat.compiled)!r}")
    follow = has_effect(flat, checked)
    needed = needed_nodes(flat, roots, follow)
    check_kept(needed, *states)
    reads = table_reads(flat, needed, handles, readers_of(flat, needed))
    for read in reads:
        if (dtype := mapped.tables[read.table].info.dtype) not in _FED_DTYPES:
            # A read of an int8 or int4 table can not be cut out of the graph: the table's scales are a variable of the
            # graph, which deltas would not change.
            raise NotProven(f"table {read.table!r} is of {dtype}")
    of_rows = {node_of(read.rows) for read in reads}
    behind = flat.depending(lambda node: node.name in of_rows, is_given=lambda i: not i.startswith("^") or follow(i))
    if chained := next((read for read in reads if node_of(read.ids) in behind), None):
        # One run computes the ids of all tables, before any row is read.
        raise NotProven(f"ids of table {chained.table!r} are computed from rows")
    if drawn := changing(flat, (read.ids for read in reads)):
        # One run computes the ids, another one the outputs, and each would draw random numbers of its own.
        raise NotProven(f"node {drawn[0]!r} computes other ids in each run")
    effects = tuple(sorted(filter(acting(flat, checked), needed)))
    given = {read.rows for read in reads}
    given |= {canonical(tensor.tensor_name) for tensor in spec.inputs.values() if tensor.tensor_name}
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


class _Left(NamedTuple):
    """The rest of a signature's graph: nodes that runs compute, and nodes that they are fed."""

    nodes: set[str]
    fed: Mapping[str, Fed]


def _cut(
    candidate: _Candidate,
    mapped: MappedTables,
    sparse: Mapping[str, SparseNames],
    shape: Callable[[str], Shape | None],
    open_session: Callable[[_Candidate, set[str], Mapping[str, Fed]], DenseSession],
) -> tuple[CutSignature, _Left]:
    spec, flat = candidate.spec, candidate.flat
    flat.drop_controls(candidate.needed - {node_of(read.rows) for read in candidate.reads}, candidate.follow)
    _, names = request_feed(spec, sparse)
    cutting = _Cutting(
        candidate,
        mapped,
        sparse,
        ClaimedOps(flat),
        readers_of(flat, candidate.needed, candidate.follow),
        [(claim, _claimed(claim, spec, sparse)) for claim in mapped.claims.get(spec.name, ())],
        shape,
        open_session,
    )
    sources: dict[str, RowSource] = {}
    alone: dict[str, RowSource] = {}
    for read in candidate.reads:
        direct = _direct(candidate, read, mapped)
        tensor, source = _source(cutting, read, direct)
        sources[tensor] = source
        is_sized = direct is not None and isinstance(source, FeatureRows) and source.sized_by
        alone |= {read.rows: direct} if direct is not None and is_sized else {tensor: source}
    id_tensors = tuple(sorted({source.tensor for source in sources.values() if isinstance(source, ComputedRows)}))
    ends = [*candidate.outputs.values(), *(f"^{name}" for name in candidate.effects)]
    before = flat.ancestors(id_tensors, cut=frozenset(sources), follow=candidate.follow)
    apart = flat.ancestors(ends, cut=frozenset(alone), follow=candidate.follow)
    carried = _carried(candidate, apart, before)
    shapes = {tensor: source.row_shape for tensor, source in sources.items()}
    fed = joined_rows(flat, ends, shapes, candidate.outputs.values(), given=carried, follow=candidate.follow)
    left, left_apart = (
        flat.ancestors(ends, cut=frozenset(cut) | carried, follow=candidate.follow) for cut in (fed, alone)
    )
    logger.info(
        "lookups are cut from the graph",
        extra={
            "signature": spec.name,
            "combined": sum(isinstance(source, FeatureRows) for source in sources.values()),
            "single_rows": sum(not isinstance(source, FeatureRows) for source in sources.values()),
        },
    )
    dtypes = {node_of(read.rows): mapped.tables[read.table].info.dtype for read in candidate.reads}
    nodes = before | left | left_apart
    # A placeholder has one output, so a node of several is computed, of fed rows.
    several = [tensor for tensor in {*fed, *alone} if not tensor.endswith(":0")]
    nodes |= flat.ancestors(several, cut=frozenset(read.rows for read in candidate.reads), follow=candidate.follow)
    given = ({*map(node_of, (*fed, *alone))} | (dtypes.keys() if several else set())) - nodes
    cut = CutSignature(
        spec,
        candidate.outputs,
        sources,
        fed,
        alone,
        id_tensors,
        tuple(sorted(carried)),
        frozenset(name for name in names if node_of(name) in before),
        frozenset(name for name in names if node_of(name) in left),
        frozenset(name for name in names if node_of(name) in left_apart),
        candidate.effects,
    )
    numbers = {name: tensor_proto.dtype_number(dtypes.get(name, "float32")) for name in given}
    return cut, _Left(nodes, {name: Fed(number, shape(f"{name}:0")) for name, number in numbers.items()})


def _carried(candidate: _Candidate, left: set[str], before: set[str]) -> frozenset[str]:
    """Returns the tensors that a signature's first run (ids) computes from the request for its second run (outputs).

    Both runs compute the results of control flow: TensorFlow lowers its nodes, and reads no tensor that is fed for one.
    """
    nodes = candidate.flat.nodes
    kept = {"Placeholder"} | CONTROL_CALLS
    of_request = candidate.flat.depending(lambda node: node.op == "Placeholder") if before else set()
    from_request = {name for name in before if nodes[name].op not in kept and name in of_request}
    return frozenset(
        tensor
        for name in left - before
        for tensor in candidate.flat.data_inputs(name)
        if node_of(tensor) in from_request
    )


def _source(cutting: _Cutting, read: TableRead, direct: InputRows | None) -> tuple[str, RowSource]:
    candidate, table = cutting.candidate, cutting.mapped.tables[read.table]
    spec, flat = candidate.spec, candidate.flat
    has_rows = direct is not None and read.table not in cutting.mapped.remote
    places = bottlenecks(flat, cutting.readers, candidate.outputs.values(), read.rows)
    given = {name for name in flat.ancestors([read.ids]) if is_placeholder(flat.nodes[name])}
    for claim, known in cutting.claims:
        # Without single rows, a request of other sizes could not be answered.
        claimed = known if has_rows else known._replace(beside={})
        if _is_read_otherwise(candidate, read, known.keys):
            # The manifest describes only one of the reads, and does not say which.
            claimed = claimed._replace(is_described=False)
        if claim.table != read.table or table.info.dtype != "float32" or not _may_stand_for(claim, spec, direct):
            continue
        if not given <= {*claimed.inputs, *claimed.beside.values()}:
            continue
        if (found := find_lookup(claim, read, places, claimed, cutting, table)) is not None:
            return found
    if direct is not None:
        return read.rows, direct
    return read.rows, ComputedRows(read.ids, table, _row_shape(cutting.shape(read.ids), table.info.embedding_dim))


def _is_read_otherwise(candidate: _Candidate, read: TableRead, keys: str) -> bool:
    """Says whether the signature reads rows of the same table by other ids, too, which it makes of the same keys."""
    flat = candidate.flat
    others = {other.ids for other in candidate.reads if other.table == read.table} - {read.ids}
    return any(keys in flat.ancestors([ids]) and not flat.computes_alike(ids, read.ids) for ids in others)


def _direct(candidate: _Candidate, read: TableRead, mapped: MappedTables) -> InputRows | None:
    flat, ids, table = candidate.flat, read.ids, mapped.tables[read.table]
    while flat.nodes[node_of(ids)].op == "Identity":
        ids = flat.data_inputs(node_of(ids))[0]
    for name, tensor in candidate.spec.inputs.items():
        if tensor.tensor_name and canonical(tensor.tensor_name) == ids:
            return InputRows(name, table, _row_shape(tensor.shape, table.info.embedding_dim))
    return None


def _row_shape(ids: tuple[int | None, ...] | None, dim: int) -> tuple[int, ...] | None:
    if not ids or None in ids[1:]:
        return None
    return (*(size or 0 for size in ids[1:]), dim)


def _may_stand_for(claim: Claim, spec: SignatureSpec, direct: InputRows | None) -> bool:
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
    return feature.on_bad_id == "error" and direct is not None and direct.input_name == feature.ids
