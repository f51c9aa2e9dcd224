"""Finds the graphs of a servable that the native core can run."""

from __future__ import annotations

from service.core.servable import Servable
from service.graph.native_graph import NativeGraph, native_savedmodel, native_tower
from service.graph.savedmodel import SavedModelBackend
from service.graph.tower import TowerBackend
from service.loading.tower_batching import TowerBatcher
from service.loading.towers import native_plan


def native_graphs(servable: Servable) -> dict[str, NativeGraph]:
    """Returns the graphs of predicts by signature, without those that only Python can run.

    A signature that --enable_batching runs is left out: its batches and their limits are Python's.
    """
    found: dict[str, NativeGraph] = {}
    for name, backend in servable.backends.items():
        batch_rows = 0
        if isinstance(backend, TowerBatcher):
            batch_rows = backend.max_rows
            backend = backend.backend
        graph = None
        if isinstance(backend, TowerBackend):
            graph = native_tower(backend, name, native_plan, batch_rows)
        elif isinstance(backend, SavedModelBackend):
            graph = native_savedmodel(backend, servable.signatures[name])
        if graph is not None:
            found[name] = graph
    return found
