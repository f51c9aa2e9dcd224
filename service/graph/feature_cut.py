"""Finds the tensor of a graph that equals a feature's lookup bit for bit, by comparing both on probe requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from service.artifact import dtypes
from service.errors import InvalidRequest
from service.graph.constants import constant_of
from service.graph.flat_graph import FlatGraph
from service.graph.graph_session import GraphError, GraphSession
from service.graph.op_definitions import op_definition
from service.graph.probes import Constants, has_same_bits, requests
from service.graph.table_reads import TableRead
from service.graph.table_rows import Claim, rows_of
from service.types import Array, SignatureSpec, Table, Tensors

# Maximum number of elements in a constant between a feature's inputs and its lookup. A larger constant may map ids to
# other ids, which the probe requests could miss.
_MOST_NUMBERS = 8
# Ops that hold a regular expression.
REGEX_OPS = frozenset({"StaticRegexReplace", "StaticRegexFullMatch"})
# DataType numbers of the constants that have a form in numpy.
_READ_DTYPES = frozenset({dtypes.STRING, *dtypes.NUMPY_DTYPES})
_VOCABULARIES = frozenset({"HashTableV2", "LookupTableFindV2", "LookupTableSizeV2"})


def find_lookup(
    claim: Claim,
    read: TableRead,
    candidates: Sequence[str],
    *,
    flat: FlatGraph,
    spec: SignatureSpec,
    table: Table,
    session: GraphSession,
    feed: Callable[[Tensors], dict[str, Array]],
    look_up: Callable[[str, Tensors], Array],
) -> str | None:
    """Returns the last candidate tensor whose bits equal those of a feature's lookup on all probes.

    Returns None if there is no such tensor: a sum that is added up in another order stays with the graph.

    Args:
      candidates: tensors that depend on the read, nearest first.
      feed: converts a request to values of the graph's tensors.
      look_up: looks up the feature of a claim, by the claim's name, for a request; raises InvalidRequest.
    """
    has_keys = claim.vocabulary is not None
    known = [(t, found) for t in candidates if (found := _constants(flat, t, read, has_keys=has_keys)) is not None]
    if not known:
        return None
    tensors = [tensor for tensor, _ in known]
    alive = list(tensors)
    for request in requests(spec, claim.feature, table.info.vocabulary_size, known[-1][1], claim.keys):
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
