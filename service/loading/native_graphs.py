"""Finds the graphs of a servable that the native core can run, and the reason for each that it can not run."""

from __future__ import annotations

from service.engine.servable import Servable
from service.graph.lazy import LazyBackend
from service.graph.native_form import NativeGraph, PythonOnly
from service.graph.native_graph import native_savedmodel, native_tower
from service.graph.savedmodel import SavedModelBackend
from service.graph.tower import TowerBackend
from service.loading.tower_batching import TowerBatcher
from service.loading.towers import native_plan


def native_graphs(servable: Servable) -> dict[str, NativeGraph | PythonOnly]:
    """Returns, for each signature with a backend, its graph for the native core, or why only Python can run it.

    Lookups are PythonOnly here, because they have no graph.
    """
    return {name: _native_graph(name, servable) for name in servable.backends}


def _native_graph(name: str, servable: Servable) -> NativeGraph | PythonOnly:
    backend = servable.backends[name]
    batch_rows = 0
    if isinstance(backend, TowerBatcher):
        batch_rows = backend.max_rows
        backend = backend.backend
    if isinstance(backend, TowerBackend):
        return native_tower(backend, name, native_plan, batch_rows)
    if isinstance(backend, SavedModelBackend):
        return native_savedmodel(backend, servable.signatures[name])
    if isinstance(backend, LazyBackend):
        return PythonOnly("its graph waits for the first request")
    # With --enable_batching, Batchers batch this signature's graph runs. The graph runs in Python, because the native
    # core has no batch queues like theirs.
    return PythonOnly("--enable_batching batches it")
