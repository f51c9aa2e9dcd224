"""Finds the signatures that the native core does not run: it forwards their requests to Python, or refuses them.

Here are reasons in the tensors and features of a signature; service.loading.native_graphs has reasons in its graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from service.graph.native_form import NativeGraph, PythonOnly
from service.tables.backend import OpenedLookups
from service.tables.plan import FeaturePlan, OutputPlan, SignaturePlan
from service.types import INIT_SIGNATURE, SignatureSpec

# The dtypes of tensors that the native core can read and write, as in native/src/plan/inputs.rs.
CORE_DTYPES = frozenset(
    {
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool", "string"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    }
)


class LeftOut(NamedTuple):
    """Why the native core does not run a signature, as native/src/plan/description.rs reads it.

    why: whether its requests are forwarded to Python; else which error they get.
    reason: in one line.
    """

    why: Literal["forwarded", "initializes", "no_tensorflow", "can_not_run", "loading"]
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
      lookups: the lookups of the version's manifest, if it has one.
      signatures, graphs: the version's signatures and the graphs of those predicts that have a backend, by name.
      faults: signature -> what contradicts its entry in the manifest.
      is_loading: the graphs are not open yet.
    """
    found = {}
    for name, spec in signatures.items():
        if name == INIT_SIGNATURE:
            found[name] = LeftOut("initializes", "")
        elif lookups is not None and name in lookups.lookup_names:
            if fault := lookup_fault(lookups.signatures[name], lookups.backend.plan(name)):
                found[name] = LeftOut("forwarded", fault)
        elif (graph := graphs.get(name)) is None:
            why = f" (its lookup manifest does not fit: {faults[name]})" if name in faults else ""
            found[name] = LeftOut("loading" if is_loading else "no_tensorflow", why)
        elif fault := graph.reason if isinstance(graph, PythonOnly) else predict_fault(spec):
            found[name] = LeftOut("can_not_run", fault)
    return found


def predict_fault(spec: SignatureSpec) -> str:
    """Returns the reason why no request can run a predict signature; "" if the dtypes of its tensors are no reason."""
    for name, tensor in (*spec.inputs.items(), *spec.outputs.items()):
        if tensor.dtype not in CORE_DTYPES:
            return f'"{name}" is {tensor.dtype}, which no request or answer can carry'
    return ""


def stored_features(graph: NativeGraph) -> frozenset[int]:
    """Returns the numbers of the features whose rows a graph is fed in another dtype than float32."""
    fed = [rows for way in ("fed", "apart") for rows in (graph.document.get(way) or {"rows": []})["rows"]]
    return frozenset(part["feature"] for rows in fed if rows["dtype"] != "float32" for part in rows["parts"])


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
