"""Finds the graphs of a servable that the native core can run, and the reason for each that it can not run."""

from __future__ import annotations

from dataclasses import replace

from service.engine.batching_parameters import BatchingParameters
from service.engine.servable import Servable
from service.graph.lazy import LazyBackend
from service.graph.native_form import NativeGraph, PythonOnly
from service.graph.native_graph import native_savedmodel, native_tower
from service.graph.savedmodel import SavedModelBackend
from service.graph.tower import TowerBackend
from service.loading.towers import native_plan


def native_graphs(
    servable: Servable, batching: BatchingParameters | None = None
) -> dict[str, NativeGraph | PythonOnly]:
    """Returns, for each signature with a backend, its graph for the native core, or why only Python can run it.

    Lookups are PythonOnly here, because they have no graph. batching: the parameters by which the core batches graph
    runs; None: each request runs by itself.
    """
    return {name: _native_graph(name, servable, batching) for name in servable.backends}


def _native_graph(name: str, servable: Servable, batching: BatchingParameters | None) -> NativeGraph | PythonOnly:
    backend = servable.backends[name]
    if isinstance(backend, TowerBackend):
        found = native_tower(backend, name, native_plan)
    elif isinstance(backend, SavedModelBackend):
        found = native_savedmodel(backend, servable.signatures[name])
    elif isinstance(backend, LazyBackend):
        return PythonOnly("its graph waits for the first request")
    else:
        return PythonOnly("it is a lookup")
    if batching is None or isinstance(found, PythonOnly):
        return found
    return replace(found, document={**found.document, "batching": batching.document})
