"""Finds the graphs of a servable that the native core runs, and the reason for each that no request can run."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from service.engine.batching_parameters import BatchingParameters
from service.engine.servable import Servable
from service.errors import ArtifactError
from service.graph.lazy import LazyBackend
from service.graph.native_form import NativeGraph, PythonOnly
from service.graph.native_graph import composite_fault, native_savedmodel, native_tower
from service.graph.savedmodel import SavedModelBackend
from service.graph.tower import TowerBackend
from service.loading.towers import native_plan
from service.tables.backend import LookupBackend
from service.types import SignatureSpec


def native_graphs(
    servable: Servable, batching: BatchingParameters | None = None
) -> dict[str, NativeGraph | PythonOnly]:
    """Returns, for each signature with a graph, its graph for the native core, or why no request can run it.

    Args:
      batching: the parameters by which the core batches graph runs; None: each request runs by itself.
    """
    return {
        name: _native_graph(name, servable, batching)
        for name, backend in servable.backends.items()
        if not isinstance(backend, LookupBackend)
    }


def _native_graph(name: str, servable: Servable, batching: BatchingParameters | None) -> NativeGraph | PythonOnly:
    backend, spec = servable.backends[name], servable.signatures[name]
    if isinstance(backend, TowerBackend):
        return _batched(native_tower(backend, name, native_plan), batching)
    if isinstance(backend, SavedModelBackend):
        return _batched(native_savedmodel(backend, spec), batching)
    assert isinstance(backend, LazyBackend), backend
    if fault := composite_fault(spec):
        return PythonOnly(fault)
    return NativeGraph((), {}, opener=partial(_open, backend, spec, batching))


def _open(backend: LazyBackend[SavedModelBackend], spec: SignatureSpec, batching: BatchingParameters | None) -> str:
    """Opens a version's graph, and returns the description of a signature as JSON; raises ArtifactError."""
    found = _batched(native_savedmodel(backend.opened(), spec), batching)
    if isinstance(found, PythonOnly):
        raise ArtifactError(found.reason)
    return json.dumps(found.document)


def _batched(graph: NativeGraph | PythonOnly, batching: BatchingParameters | None) -> NativeGraph | PythonOnly:
    if batching is None or isinstance(graph, PythonOnly):
        return graph
    return replace(graph, document={**graph.document, "batching": batching.document})
