"""Finds the signatures that the native core does not run: it refuses their requests.

The core answers all lookups. Here are reasons in the tensors of a predict; service.loading.native_graphs has reasons in
its graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from service.graph.native_form import NativeGraph, PythonOnly
from service.tables.backend import OpenedLookups
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

    why: which error its requests get.
    reason: in one line.
    """

    why: Literal["initializes", "no_tensorflow", "can_not_run", "loading"]
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
            continue
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
