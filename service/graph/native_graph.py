"""Describes a predict signature for the native core: its session, and the rows and inputs to feed to tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from service.graph.native_form import NativeGraph, PythonOnly
from service.graph.savedmodel import SavedModelBackend
from service.graph.table_rows import ComputedRows, FeatureRows, RowSource
from service.graph.tower import TowerBackend
from service.tables.plan import FeaturePlan
from service.types import SignatureSpec

_ID_DTYPES = ("int64", "int32")


def native_tower(
    tower: TowerBackend,
    name: str,
    plan_of: Callable[[SignatureSpec, RowSource], FeaturePlan],
) -> NativeGraph | PythonOnly:
    """Returns the description of a cut signature's remaining graph for the native core, or why only Python can run it.

    Args:
      plan_of: returns the lookup that gives a source's rows.
    """
    cut, sparse = tower.cuts[name], tower.sparse_inputs(name)
    plans: dict[str, FeaturePlan] = {}
    vocabularies = {}
    for tensor, source in cut.sources.items():
        plan = plan_of(cut.spec, source)
        if isinstance(source, FeatureRows) and source.claim.vocabulary is not None:
            vocabularies[len(plans)] = source.claim.vocabulary
        elif not isinstance(source, ComputedRows) and not _reads_integers(cut.spec, plan):
            return PythonOnly(f'ids "{plan.feature.ids}" or their row splits are neither int64 nor int32')
        plans[tensor] = plan
    if any(tensor in names for names in sparse.values() for tensor in cut.inputs | cut.inputs_apart | cut.id_inputs):
        return PythonOnly("its graph has sparse inputs")
    numbers = {tensor: number for number, tensor in enumerate(plans)}
    widths = {tensor: _width(source) for tensor, source in cut.sources.items()}
    rows = [
        {
            "tensor": tensor,
            "parts": [{"feature": numbers[part], "width": widths[part]} for part in value.parts],
            "shape": value.shape,
        }
        for tensor, value in cut.fed.items()
    ]
    apart = None
    if any(len(value.parts) > 1 or value.shape is not None for value in cut.fed.values()):
        apart = {
            "rows": [
                {"tensor": tensor, "parts": [{"feature": number, "width": widths[tensor]}], "shape": None}
                for tensor, number in numbers.items()
            ],
            "inputs": _fed_inputs(cut.spec, cut.inputs_apart),
        }
    computing = None
    if cut.id_tensors:
        computing = {
            "inputs": _fed_inputs(cut.spec, cut.id_inputs),
            "ids": list(cut.id_tensors),
            "carried": list(cut.carried),
        }
    document = {
        "session": tower.session_number,
        "computing": computing,
        "rows": rows,
        "apart": apart,
        "inputs": _fed_inputs(cut.spec, cut.inputs),
        "outputs": [cut.outputs[name] for name in cut.spec.outputs],
        "targets": list(cut.effects),
        "batching": None,
    }
    fed = cut.inputs | cut.inputs_apart | cut.id_inputs
    return _graph(cut.spec, NativeGraph(tuple(plans.values()), document, cut.id_tensors, vocabularies), fed)


def native_savedmodel(backend: SavedModelBackend, spec: SignatureSpec) -> NativeGraph | PythonOnly:
    """Returns the description of a signature's whole graph for the native core, or why only Python can run it."""
    if backend.has_sparse_inputs(spec.name):
        return PythonOnly("its graph has sparse inputs")
    if any(spec.ragged_names):
        return PythonOnly("its graph has ragged inputs and can not be cut")
    fed = frozenset(tensor.tensor_name for tensor in spec.inputs.values())
    document = {
        "session": backend.session_number,
        "computing": None,
        "rows": [],
        "inputs": _fed_inputs(spec, fed),
        "outputs": [tensor.tensor_name for tensor in spec.outputs.values()],
        "targets": [],
        "batching": None,
    }
    return _graph(spec, NativeGraph((), document), fed)


def _fed_inputs(spec: SignatureSpec, fed: frozenset[str]) -> list[dict[str, Any]]:
    return [
        {"tensor": tensor.tensor_name, "input": number}
        for number, tensor in enumerate(spec.inputs.values())
        if tensor.tensor_name in fed
    ]


def _graph(spec: SignatureSpec, graph: NativeGraph, fed: frozenset[str]) -> NativeGraph | PythonOnly:
    """Returns the given description of a signature's graph, or a PythonOnly that says why the core can not run it."""
    if graph.document["session"] is None:
        return PythonOnly("its graph is open in Python's session, for the native core can not open it")
    if optional := [tensor.name for tensor in spec.inputs.values() if tensor.tensor_name in fed and tensor.is_optional]:
        return PythonOnly(f'input "{min(optional)}" has a default')
    if "" in fed or not all(graph.document["outputs"]):
        return PythonOnly("it has a sparse or composite tensor")
    if not graph.document["outputs"]:
        return PythonOnly("it has no outputs")
    return graph


def _reads_integers(spec: SignatureSpec, plan: FeaturePlan) -> bool:
    integers = (plan.feature.ids, plan.feature.row_splits)
    return all(name is None or spec.inputs[name].dtype in _ID_DTYPES for name in integers)


def _width(source: RowSource) -> int | None:
    return None if source.row_shape is None else math.prod(source.row_shape)
