"""Finds the signatures that the native core can not answer, so that it forwards their requests to Python.

Here are reasons in the tensors and features of a signature; service.loading.native_graphs has reasons in its graph.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.graph.native_form import NativeGraph, PythonOnly
from service.tables.backend import OpenedLookups
from service.tables.plan import FeaturePlan, OutputPlan, SignaturePlan
from service.types import SignatureSpec, runnable

# The dtypes of tensors that the native core can read and write, as in native/src/plan/inputs.rs.
CORE_DTYPES = frozenset(
    {
        *("float16", "bfloat16", "float32", "float64", "bool", "string"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    }
)

_NOTHING_RUNS_IT = PythonOnly("nothing runs it here: it needs TensorFlow")


def left_out(
    lookups: OpenedLookups | None,
    signatures: Mapping[str, SignatureSpec],
    graphs: Mapping[str, NativeGraph | PythonOnly],
) -> dict[str, str]:
    """Returns signature -> reason, for the signatures that the native core does not answer.

    Args:
      lookups: the lookups of the version's manifest, if it has one.
      signatures, graphs: the version's signatures and the graphs of those predicts that have a backend, by name.
    """
    found = {}
    for name, spec in runnable(signatures).items():
        if lookups is not None and name in lookups.lookup_names:
            fault = lookup_fault(lookups.signatures[name], lookups.backend.plan(name))
        else:
            graph = graphs.get(name, _NOTHING_RUNS_IT)
            fault = graph.reason if isinstance(graph, PythonOnly) else predict_fault(spec, graph)
        if fault:
            found[name] = fault
    return found


def predict_fault(spec: SignatureSpec, graph: NativeGraph) -> str:
    """Returns the reason why the native core can not answer a predict signature; "" if it can."""
    for name, tensor in (*spec.inputs.items(), *spec.outputs.items()):
        if tensor.dtype not in CORE_DTYPES:
            return f'"{name}" is {tensor.dtype}, which the native core does not read or write'
    for feature in graph.features:
        lookup = feature.feature
        if lookup.ids in graph.computed:
            continue
        if fault := _feature_fault(spec, feature):
            return fault
        if lookup.row_splits is not None and all(
            one[1:3] != (lookup.ids, lookup.row_splits) for one in spec.ragged_names
        ):
            return f'ragged ids "{lookup.ids}" and "{lookup.row_splits}" have no common name in JSON'
    return ""


def lookup_fault(spec: SignatureSpec, plan: SignaturePlan) -> str:
    """Returns the reason why the native core can not answer a lookup signature; "" if it can."""
    for name, tensor in spec.inputs.items():
        if tensor.dtype not in CORE_DTYPES:
            return f'"{name}" is {tensor.dtype}, which the native core does not read'
    for name, tensor in spec.outputs.items():
        if tensor.dtype != "float32":
            return f'"{name}" is {tensor.dtype}: the native core writes rows as float32'
    if spec.outputs.keys() != plan.outputs.keys():
        return "it has outputs that are no rows of tables"
    for feature in plan.features.values():
        if fault := _feature_fault(spec, feature):
            return fault
    for name, output in plan.outputs.items():
        if not _is_joinable(plan, output):
            return f'output "{name}" has sequences side by side'
    return ""


def _feature_fault(spec: SignatureSpec, plan: FeaturePlan) -> str:
    lookup = plan.feature
    what = f'the feature of "{lookup.ids}"'
    if lookup.max_norm is not None:
        return f"{what} has max_norm"
    if not plan.is_one_kernel:
        return f"{what} is of float64, or drops ids by weight and treats rows without ids apart"
    for name in (lookup.ids, lookup.row_splits, lookup.weights):
        if name is not None and name not in spec.inputs:
            return f'{what} reads "{name}", which is no input'
    if lookup.default_row >= plan.table.info.vocabulary_size:
        return f"{what} has default row {lookup.default_row} of a table with {plan.table.info.vocabulary_size}"
    return ""


def _is_joinable(plan: SignaturePlan, output: OutputPlan) -> bool:
    # The native core can join the sequences of several features in one output only if the output has rank 2: each of
    # its rows is one vector.
    lengths = [plan.features[part].feature.max_sequence_length for part in output.parts]
    return len(lengths) == 1 or output.rank == 2 or not any(lengths)
