"""Finds the signatures that the native core can not answer, so that it forwards their requests to Python.

The core answers all lookups. Here are reasons in the tensors of a predict; service.loading.native_graphs has reasons in
its graph.
"""

from __future__ import annotations

from collections.abc import Mapping

from service.graph.native_form import NativeGraph, PythonOnly
from service.tables.backend import OpenedLookups
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
            continue
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
    return ""
