"""Describes a predict signature for the native core: its session, and the rows and inputs to feed to tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from service.graph.joined_rows import JoinedRows
from service.graph.native_form import NativeGraph, PythonOnly
from service.graph.savedmodel import SavedModelBackend
from service.graph.sparse import fed_inputs
from service.graph.tower import ComputedRows, FeatureRows, RowSource, TowerBackend
from service.tables.plan import FeaturePlan
from service.types import SignatureSpec, Vocabulary

_ID_DTYPES = ("int64", "int32")


def native_tower(
    tower: TowerBackend,
    name: str,
    plan_of: Callable[[SignatureSpec, RowSource], FeaturePlan],
) -> NativeGraph | PythonOnly:
    """Returns the graph that is left of a cut signature, for the native core, or why no request can run it."""
    cut, sparse = tower.cuts[name], tower.sparse.get(name, {})
    plans: dict[str, FeaturePlan] = {}
    vocabularies: dict[int, Vocabulary] = {}
    sources = {**cut.sources, **cut.apart}
    for number, (tensor, source) in enumerate(sources.items()):
        plan = plan_of(cut.spec, source)
        if isinstance(source, FeatureRows) and source.claim.vocabulary is not None:
            vocabularies[number] = source.claim.vocabulary
        if not isinstance(source, ComputedRows) and not _reads_integers(cut.spec, plan, number in vocabularies):
            return PythonOnly(f'ids "{plan.feature.ids}" or their row splits are neither int64 nor int32')
        plans[tensor] = plan
    numbers = {tensor: number for number, tensor in enumerate(plans)}
    inputs = {name: number for number, name in enumerate(cut.spec.inputs)}

    def feeding(fed: Mapping[str, JoinedRows], wanted: frozenset[str]) -> dict[str, Any]:
        rows = [
            {
                "tensor": tensor,
                "parts": [{"feature": numbers[part], "width": _width(sources[part])} for part in value.parts],
                "shape": value.shape,
                "dtype": sources[value.parts[0]].table.info.dtype if value.parts[0] in stored else "float32",
            }
            for tensor, value in fed.items()
        ]
        return {"rows": rows, "inputs": fed_inputs(cut.spec, sparse, wanted)}

    stored = {tensor for tensor, source in sources.items() if not isinstance(source, FeatureRows)}
    apart = {tensor: JoinedRows((tensor,), None) for tensor in cut.apart}
    computing = None
    if cut.id_tensors:
        computing = {
            "inputs": fed_inputs(cut.spec, sparse, cut.id_inputs),
            "ids": list(cut.id_tensors),
            "carried": list(cut.carried),
        }
    document = {
        "session": tower.session.number,
        "computing": computing,
        "fed": feeding(cut.fed, cut.inputs),
        "apart": None if cut.fed == apart else feeding(apart, cut.inputs_apart),
        "outputs": [cut.outputs[name] for name in cut.spec.outputs],
        "targets": list(cut.effects),
        "sized_by": [
            [numbers[tensor], inputs[name]]
            for tensor, source in cut.sources.items()
            if isinstance(source, FeatureRows)
            for name in source.sized_by
        ],
        "batching": None,
    }
    return _graph(cut.spec, NativeGraph(tuple(plans.values()), document, cut.id_tensors, vocabularies))


def native_savedmodel(backend: SavedModelBackend, spec: SignatureSpec) -> NativeGraph | PythonOnly:
    outputs, targets = backend.fetched(tensor.tensor_name for tensor in spec.outputs.values())
    document = {
        "session": None if backend.session is None else backend.session.number,
        "computing": None,
        "fed": {"rows": [], "inputs": fed_inputs(spec, backend.sparse.get(spec.name, {}))},
        "apart": None,
        "outputs": outputs,
        "targets": targets,
        "batching": None,
    }
    return _graph(spec, NativeGraph((), document))


def _graph(spec: SignatureSpec, graph: NativeGraph) -> NativeGraph | PythonOnly:
    if fault := composite_fault(spec):
        return PythonOnly(fault)
    if graph.document["session"] is None:
        return PythonOnly("TensorFlow's C API can not open its graph")
    return graph


def composite_fault(spec: SignatureSpec) -> str:
    # A sparse matrix is sent as values and row splits, and the graph has no tensor of row splits.
    splits = {names.row_splits for names in spec.ragged_names}
    for name, tensor in spec.inputs.items():
        if not tensor.tensor_name and name not in splits:
            return f'input "{name}" is a sparse or composite tensor'
    if spec.outputs and not any(tensor.tensor_name for tensor in spec.outputs.values()):
        return "each of its outputs is a sparse or composite tensor"
    return ""


def _reads_integers(spec: SignatureSpec, plan: FeaturePlan, has_keys: bool) -> bool:
    integers = (None if has_keys else plan.feature.ids, plan.feature.row_splits)
    return all(name is None or spec.inputs[name].dtype in _ID_DTYPES for name in integers)


def _width(source: RowSource) -> int | None:
    return None if source.row_shape is None else math.prod(source.row_shape)
