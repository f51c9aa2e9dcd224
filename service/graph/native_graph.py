"""What the native core needs to run predicts: an open session, and which rows and inputs its tensors are fed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from service.core.types import SignatureSpec
from service.graph.savedmodel import SavedModelBackend
from service.graph.table_rows import RowSource
from service.graph.tower import TowerBackend
from service.lookup.plan import FeaturePlan

_ID_DTYPES = ("int64", "int32")


@dataclass(frozen=True, slots=True)
class NativeGraph:
    """The graph of one predict. Numbers of inputs and outputs are places in those of its SignatureSpec.

    features: what is looked up, by number.
    document: as native/src/towers/description.rs reads it.
    """

    features: tuple[FeaturePlan, ...]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PythonOnly:
    """A predict that the native core can not run. reason: why, in one line."""

    reason: str


def native_tower(
    tower: TowerBackend, name: str, plan_of: Callable[[SignatureSpec, RowSource], FeaturePlan | None]
) -> NativeGraph | PythonOnly:
    """Returns the graph of a cut signature, or why only Python can run it.

    Args:
      plan_of: the lookup that gives a source's float32 rows; None where no single lookup does.
    """
    cut, sparse = tower.cuts[name], tower.sparse_inputs(name)
    if cut.id_tensors or cut.carried:
        return PythonOnly("its graph works ids out itself")
    plans: dict[str, FeaturePlan] = {}
    for tensor, source in cut.sources.items():
        plan = plan_of(cut.spec, source)
        if plan is None:
            return PythonOnly(f"no single lookup gives the rows of {tensor}")
        if not _reads_integers(cut.spec, plan):
            return PythonOnly(f'ids "{plan.feature.ids}" or their row splits are neither int64 nor int32')
        plans[tensor] = plan
    if any(tensor in names for names in sparse.values() for tensor in cut.inputs):
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
    fed = frozenset(n for n, tensor in cut.spec.inputs.items() if tensor.tensor_name in cut.inputs)
    return _graph(tower.session_number, cut.spec, cut.outputs, fed, tuple(plans.values()), rows, cut.effects)


def native_savedmodel(backend: SavedModelBackend, spec: SignatureSpec) -> NativeGraph | PythonOnly:
    """Returns the graph of a signature that runs whole, or why only Python can run it."""
    if backend.has_sparse_inputs(spec.name):
        return PythonOnly("its graph has sparse inputs")
    if any(spec.ragged_names):
        return PythonOnly("its graph has ragged inputs and can not be cut")
    outputs = {name: tensor.tensor_name for name, tensor in spec.outputs.items()}
    return _graph(backend.session_number, spec, outputs, frozenset(spec.inputs), (), [], ())


def _graph(
    session: int | None,
    spec: SignatureSpec,
    outputs: Mapping[str, str],
    fed: frozenset[str],
    features: tuple[FeaturePlan, ...],
    rows: list[dict[str, Any]],
    targets: tuple[str, ...],
) -> NativeGraph | PythonOnly:
    inputs = [
        {"tensor": tensor.tensor_name, "input": number}
        for number, (name, tensor) in enumerate(spec.inputs.items())
        if name in fed
    ]
    if session is None:
        return PythonOnly("its graph is open in Python's session, for the native core can not open it")
    if optional := [name for name in fed if spec.inputs[name].is_optional]:
        return PythonOnly(f'input "{min(optional)}" has a default')
    if not all(one["tensor"] for one in inputs) or not all(outputs.values()):
        return PythonOnly("it has a sparse or composite tensor")
    if not outputs:
        return PythonOnly("it has no outputs")
    document = {
        "session": session,
        "rows": rows,
        "inputs": inputs,
        "outputs": [outputs[name] for name in spec.outputs],
        "targets": list(targets),
    }
    return NativeGraph(features, document)


def _reads_integers(spec: SignatureSpec, plan: FeaturePlan) -> bool:
    integers = (plan.feature.ids, plan.feature.row_splits)
    return all(name is None or spec.inputs[name].dtype in _ID_DTYPES for name in integers)


def _width(source: RowSource) -> int | None:
    return None if source.row_shape is None else math.prod(source.row_shape)
