"""Finds the gather ops by which a graph reads mapped tables, and the tensors through which all their rows pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.artifact import tensor_proto
from service.artifact.signature_def import tensor_names
from service.errors import ArtifactError
from service.graph.flat_graph import SAME, FlatGraph, called_functions, constant_of, flatten, node_of
from service.graph.library import op_definition
from service.graph.restoring import init_op
from service.types import INIT_SIGNATURE

_PURE_READS = frozenset(
    {
        *("ReadVariableOp", "ResourceGather", "LookupTableFindV2", "LookupTableSizeV2", "NoOp"),
        *("VarHandleOp", "VariableV2", "HashTableV2"),
    }
)
# Beginnings of the names of ops that write.
_WRITES = ("Assign", "Scatter", "ResourceScatter", "ResourceApply", "ResourceSparseApply", "LookupTableInsert")
# Ops that TensorFlow calls stateful, or that take references, and that leave every state as it is.
_KEEPS_STATE = _PURE_READS | {
    *("Variable", "HashTable", "MutableHashTableV2", "MutableDenseHashTableV2", "ResourceGatherNd", "VariableShape"),
    *("VarIsInitializedOp", "LookupTableFind", "LookupTableSize", "LookupTableExportV2", "Assert"),
}
# Ops whose effects are those of the functions that they call.
CONTROL_CALLS = frozenset({f"{kind}{op}" for op in ("If", "While", "Case") for kind in ("", "Stateless")}) | {
    *("PartitionedCall", "StatefulPartitionedCall"),
}
# Ops of the control flow of TensorFlow 1. A control input there says in which case, or how often, a node runs.
_CONTROL_FLOW = frozenset(
    {f"{kind}{op}" for op in ("Switch", "Merge", "Enter", "Exit", "NextIteration") for kind in ("", "Ref")}
)
# Ops that pass handles of variables on, besides control flow.
_PASS_HANDLES = _CONTROL_FLOW | {"Identity", "RefIdentity", "IdentityN", "RefSelect"}
# Beginnings of the names of ops on a state that ends with its run.
_OF_A_RUN = ("TensorArray", "Stack")
# Ops that are fed a request's inputs.
PLACEHOLDERS = ("Placeholder", "PlaceholderWithDefault")
# Maximum number of tensors that bottlenecks() returns, tensors on every path from a gather op's rows to the outputs: a
# combined lookup has about a dozen nodes, and later nodes are dense layers.
_MOST_BOTTLENECKS = 24
# DataType numbers of the ids that the core can look up; a GatherV2 also takes int16.
_ID_DTYPES = frozenset({tensor_proto.NUMBER_OF_DTYPE[np.dtype(name)] for name in ("int32", "int64")})
_RESOURCE = tensor_proto.dtype_number("resource")
# Error text by which a check of tf.RaggedTensor.from_row_splits is recognised; such checks need not run, because
# the core has checked the row splits before.
_ROW_SPLITS_CHECK = b"do not form a valid RaggedTensor"


class TableRead(NamedTuple):
    table: str
    ids: str
    rows: str


class NotProven(Exception):
    """The error whose text says why a signature can not be cut, so that TensorFlow runs its whole graph."""


def has_effect(flat: FlatGraph, checked: frozenset[str]) -> Callable[[str], bool]:
    """Returns a function that says whether the node of a control input "^node" must run for its side effects.

    Reads need not run; nor need a check of row splits that the core has made already.

    Args:
      checked: placeholders of row splits that the core has checked.
    """
    acts = acting(flat, checked)

    def is_awaited(node: Any) -> bool:
        # What waits for a condition, such as an assertion, waits for the Identity that TensorFlow puts behind it.
        return acts(node.name) or (node.op == "Identity" and acts(node_of(node.input[0])))

    # TensorFlow lets each check of ragged inputs wait for the one before it, so chains of control inputs are long.
    found = flat.depending(is_awaited, is_given=lambda reference: reference.startswith("^"))
    return lambda reference: node_of(reference) in found


def needed_nodes(flat: FlatGraph, roots: Iterable[str], follow: Callable[[str], bool]) -> set[str]:
    """Returns all nodes on which the given tensors and the side effects of inlined function calls depend.

    Raises NotProven if one of the nodes writes a variable, or is control flow of TensorFlow 1.
    """
    effects = [f"^{name}" for name in flat.calls]
    needed = flat.ancestors([*roots, *effects], follow=follow)
    if writer := next((n for n in sorted(needed) if _writes(flat.nodes[n].op)), None):
        raise NotProven(f"node {writer!r} writes what it may read")
    if flow := next((n for n in sorted(needed) if flat.nodes[n].op in _CONTROL_FLOW), None):
        raise NotProven(f"node {flow!r} is control flow of TensorFlow 1")
    return needed


def written_variables(meta_graph: Any) -> frozenset[str]:
    """Returns the nodes of the variables and tables that a signature of a MetaGraphDef writes.

    A signature that reads one of them must run in the session in which the other one writes it.
    """
    found: set[str] = set()
    for name in _signatures(meta_graph):
        found |= _written_in(_flat(meta_graph, name))
    return frozenset(found)


def initialized_variables(meta_graph: Any) -> frozenset[str]:
    """Returns the nodes of the variables and tables that the init node of a MetaGraphDef writes.

    Once it is loaded, such a variable may hold other numbers than the checkpoint.

    Raises:
      ArtifactError: as flatten().
    """
    init = init_op(meta_graph)
    return frozenset(_written_in(flatten(meta_graph.graph_def, [init])) if init else ())


def _written_in(flat: FlatGraph) -> set[str]:
    found: set[str] = set()
    todo = [given for writer in _writers(flat) for given in flat.data_inputs(writer)]
    seen = {*todo}
    for given in todo:
        node = flat.nodes[node_of(given)]
        if node.op in _PASS_HANDLES | CONTROL_CALLS:
            more = set(flat.data_inputs(node.name)) - seen
            seen |= more
            todo += more
        elif _is_handle(node):
            found.add(node.name)
    return found


def writing_signatures(meta_graph: Any) -> frozenset[str]:
    """Returns the signatures of a MetaGraphDef whose runs may change what a later run answers.

    They write variables or tables, draw random numbers, or have ops of which nothing is known.
    """
    found = set()
    for name in _signatures(meta_graph):
        try:
            if any(_writers(_flat(meta_graph, name))):
                found.add(name)
        except (ArtifactError, KeyError):
            found.add(name)
    return frozenset(found)


def changing(flat: FlatGraph, tensors: Iterable[str]) -> list[str]:
    """Returns the nodes that compute some tensors and may compute others in the next run, such as random numbers."""
    seen: set[str] = set()
    nodes = flat.ancestors(tensors, follow=lambda reference: False)
    return sorted(name for name in nodes if _may_write(flat.nodes[name], flat.functions, seen))


def _signatures(meta_graph: Any) -> list[str]:
    # What the init node writes, it writes in each session before the first request.
    return [name for name in meta_graph.signature_def if name != INIT_SIGNATURE]


def _flat(meta_graph: Any, signature: str) -> FlatGraph:
    outputs = meta_graph.signature_def[signature].outputs.values()
    return flatten(meta_graph.graph_def, [*tensor_names(outputs)])


def _writes(name: str) -> bool:
    """Says whether an op writes a variable or a table; ScatterNd, which only makes numbers, takes neither."""
    op = op_definition(name) if name.startswith(_WRITES) else None
    taken = () if op is None else op.input_arg
    return name.startswith(_WRITES) and (op is None or any(one.is_ref or one.type == _RESOURCE for one in taken))


def _writers(flat: FlatGraph) -> Iterator[str]:
    seen: set[str] = set()
    return (name for name, node in flat.nodes.items() if _may_write(node, flat.functions, seen))


def _may_write(node: Any, bodies: Mapping[str, Any], harmless: set[str]) -> bool:
    """Says whether a node may change a state that a later run sees.

    Args:
      harmless: functions that are known to change none, to which others are added.
    """
    called = {name for name in called_functions(node) if name in bodies}
    for name in called - harmless:
        harmless.add(name)
        if any(_may_write(inner, bodies, harmless) for inner in bodies[name].node_def):
            harmless.discard(name)
            return True
    if node.op in _KEEPS_STATE or node.op in CONTROL_CALLS or node.op in bodies or node.op.startswith(_OF_A_RUN):
        return False
    op = op_definition(node.op)
    return op is None or op.is_stateful or any(given.is_ref for given in op.input_arg)


def _is_handle(node: Any) -> bool:
    op = op_definition(node.op)
    return op is None or any(made.is_ref or made.type == _RESOURCE for made in op.output_arg)


def check_kept(needed: set[str], kept: frozenset[str], written: frozenset[str]) -> None:
    """Raises NotProven if a signature reads a state that another session of the same graph may lack.

    Args:
      needed: the nodes of the signature.
      kept: what restored_otherwise() returns for the MetaGraph. written: what written_variables() returns for it.
    """
    if held := sorted(needed & kept):
        raise NotProven(f"{held[0]!r} keeps a state that is no variable, such as a mutable hash table")
    if held := sorted(needed & written):
        raise NotProven(f"a signature writes {held[0]!r}")


def readers_of(
    flat: FlatGraph, needed: Iterable[str], follow: Callable[[str], bool] = lambda reference: False
) -> dict[str, list[str]]:
    """Returns node -> the given nodes that read it, each once; follow: says whether a control input "^node" counts."""
    readers: dict[str, list[str]] = {}
    for name in sorted(needed):
        read = [i for i in flat.nodes[name].input if not i.startswith("^") or follow(i)]
        for given in dict.fromkeys(map(node_of, read)):
            readers.setdefault(given, []).append(name)
    return readers


def table_reads(
    flat: FlatGraph, needed: set[str], tables: Mapping[str, str], readers: Mapping[str, Sequence[str]]
) -> list[TableRead]:
    """Returns all gather ops by which the given nodes of a graph read rows of embedding tables.

    Args:
      tables: node of the variable -> table.

    Raises:
      NotProven: a table is read otherwise than row by row.
    """
    reads, todo = [], [(f"{handle}:0", table) for handle, table in tables.items() if handle in needed]
    while todo:
        tensor, table = todo.pop()
        for name in readers.get(node_of(tensor), ()):
            node = flat.nodes[name]
            inputs = flat.data_inputs(name)
            if tensor not in inputs:
                continue
            if node.op == "ReadVariableOp" or node.op in SAME:
                todo.append((f"{name}:0", table))
            elif _is_gather(flat, node) and tensor == inputs[0] and inputs[1] != tensor:
                reads.append(TableRead(table, inputs[1], f"{name}:0"))
            else:
                raise NotProven(f"node {name!r} ({node.op}) reads table {table!r} otherwise than row by row")
    return reads


def bottlenecks(flat: FlatGraph, readers: Mapping[str, Sequence[str]], roots: Iterable[str], tensor: str) -> list[str]:
    """Returns the tensors that lie on every path from a tensor to the signature's outputs, nearest first.

    There are at most _MOST_BOTTLENECKS tensors: the first is the tensor itself, and none is an output of the signature.
    """
    ends = {node_of(root) for root in roots}
    found, place = [tensor], node_of(tensor)
    while len(found) < _MOST_BOTTLENECKS:
        following = next((n for n in downstream(readers, place) if not _escapes(readers, place, n, ends)), None)
        if following is None or following in ends:
            break
        outputs = {i for r in readers.get(following, ()) for i in flat.nodes[r].input if node_of(i) == following}
        place = following
        if outputs == {f"{place}:0"}:
            found.append(f"{place}:0")
    return found


def downstream(readers: Mapping[str, Sequence[str]], start: str) -> Iterator[str]:
    seen, todo = {start}, [start]
    for name in todo:
        for reader in readers.get(name, ()):
            if reader not in seen:
                seen.add(reader)
                todo.append(reader)
                yield reader


def _escapes(readers: Mapping[str, Sequence[str]], start: str, wall: str, ends: set[str]) -> bool:
    seen, todo = {start, wall}, [start]
    for name in todo:
        if name in ends:
            return True
        for reader in readers.get(name, ()):
            if reader not in seen:
                seen.add(reader)
                todo.append(reader)
    return False


def _is_gather(flat: FlatGraph, node: Any) -> bool:
    if node.attr["batch_dims"].i or node.attr["Tindices"].type not in _ID_DTYPES:
        return False
    if node.op == "ResourceGather" or node.op == "Gather":
        return True
    if node.op != "GatherV2":
        return False
    axis = flat.nodes[node_of(flat.data_inputs(node.name)[2])]
    return axis.op == "Const" and _scalar(axis) == 0


def _scalar(node: Any) -> int:
    return int(constant_of(node))


def acting(flat: FlatGraph, checked: frozenset[str]) -> Callable[[str], bool]:
    """Returns a function that says whether a node must run for a side effect, such as a failing check that the core
    does not make.
    """
    of_others = flat.depending(lambda node: node.op in PLACEHOLDERS and node.name not in checked)

    def acts(name: str) -> bool:
        node = flat.nodes[name]
        if node.op in _PURE_READS or not _is_stateful(node):
            return False
        return name in of_others or not _is_row_splits_check(flat, node)

    return acts


def _is_stateful(node: Any) -> bool:
    op = op_definition(node.op)
    return op is None or op.is_stateful


def _is_row_splits_check(flat: FlatGraph, node: Any) -> bool:
    if node.op in ("If", "StatelessIf"):
        name = node.attr["else_branch"].func.name
        bodies = [*flat.functions[name].node_def] if name in flat.functions else []
    else:
        bodies = [node, *(flat.nodes[node_of(i)] for i in flat.data_inputs(node.name))]
    return any(n.op == "Assert" for n in bodies) and any(_says(n) for n in bodies if n.op == "Const")


def _says(constant: Any) -> bool:
    if constant.attr["dtype"].type != tensor_proto.STRING:
        return False
    return any(_ROW_SPLITS_CHECK in value for value in constant_of(constant).reshape(-1).tolist())
