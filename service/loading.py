"""Turns a version folder into a servable: lookups on mapped tables, the rest on TensorFlow where it is there."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from service.codecs.saved_model_config import check_saved_model_config
from service.codecs.signature_def import SERVE_TAGS, read_signatures
from service.core.errors import ArtifactError, ServiceError
from service.core.manifest import Manifest
from service.core.servable import Servable
from service.core.types import Backend, SignatureSpec
from service.direct import http_bodies, predict
from service.graph.lazy import LazyBackend
from service.graph.savedmodel import open_savedmodel
from service.graph_batching import GraphBatching
from service.lookup.backend import open_lookups
from service.recorded_warmup import replay_requests
from service.warmup import warm_up


class WarmupObserver(Protocol):
    """Learns how a replay of recorded requests ended; status is a canonical code. Must not raise."""

    def __call__(self, *, model: str, version: int, path: str, status: str, seconds: float, records: int) -> None: ...


@dataclass(frozen=True, slots=True)
class ServableLoader:
    """Loads version folders. Concurrency: any thread.

    graph_signatures: "auto", "lazy" or "off", as in Settings.
    graph_threads: TensorFlow's threads; inter_op_threads: those for runs side by side, where it is another number.
    warmup_iterations: how often each recorded warm-up request is run; 0: none is.
    on_warmup: told of each replay of such requests.
    batching: batches graph runs; None: each runs by itself.
    """

    tags: frozenset[str]
    graph_signatures: str
    graph_threads: int
    warmup_iterations: int = 1
    inter_op_threads: int | None = None
    on_warmup: WarmupObserver | None = None
    batching: GraphBatching | None = None

    def __call__(self, name: str, version: int, path: Path) -> Servable:
        """Loads and warms up one version; raises ArtifactError, whose message names what is wrong in the folder."""
        check_saved_model_config(path)
        servable = self._open(name, version, path)
        # A graph that waits for its first request is not to be opened for a recorded one.
        cold = self._graph_names(servable) if self.graph_signatures == "lazy" else frozenset()
        try:
            if self.batching is not None:
                servable = self.batching.wrap(servable, path)
            if self.warmup_iterations:
                self._warm_up(servable, path, cold)
        except ServiceError:
            servable.close()
            raise
        return servable

    def _warm_up(self, servable: Servable, path: Path, cold: frozenset[str]) -> None:
        started_s = time.monotonic()
        records, status = 0, "OK"
        try:
            records = replay_requests(servable, path, self.warmup_iterations, cold)
        except ServiceError as error:
            status = error.code
            raise
        finally:
            if self.on_warmup and (records or status != "OK"):
                self.on_warmup(
                    model=servable.name,
                    version=servable.version,
                    path=str(path),
                    status=status,
                    seconds=time.monotonic() - started_s,
                    records=records,
                )

    def _graph_names(self, servable: Servable) -> frozenset[str]:
        return frozenset(n for n, backend in servable.backends.items() if isinstance(backend, LazyBackend))

    def _open(self, name: str, version: int, path: Path) -> Servable:
        signatures = read_signatures(path / "saved_model.pb", self.tags)
        manifest = Manifest.read(path)
        if manifest is None:
            if not self._can_run_graphs():
                raise ArtifactError(
                    f"{path} has no lookup manifest, so all of it needs TensorFlow, and this server runs without; "
                    "install the extra [tensorflow] or use the full image"
                )
            graph = self._open_graph(path, signatures)
            return Servable(name, version, signatures, dict.fromkeys(signatures, graph))
        if self.tags != SERVE_TAGS:
            # The manifest speaks of the {serve} MetaGraph; another one may have fewer signatures over the same tables.
            described = {name: entry for name, entry in manifest.signatures.items() if name in signatures}
            manifest = replace(manifest, signatures=described)
        lookups = open_lookups(path, manifest, signatures)
        backends: dict[str, Backend] = dict.fromkeys(lookups.lookup_names, lookups.backend)
        graph_names = [s for s in signatures if s not in lookups.lookup_names]
        if graph_names and self._can_run_graphs():
            graph = self._open_graph(path, lookups.signatures)
            backends |= dict.fromkeys(graph_names, graph)
            if self.graph_signatures != "lazy":
                warm_up(graph, {s: lookups.signatures[s] for s in graph_names})
        return Servable(
            name,
            version,
            lookups.signatures,
            backends,
            lookups.tables,
            lookups.backend.table_counts,
            {**predict.shortcuts(lookups, name, version), **http_bodies.shortcuts(lookups, name, version)},
        )

    def _can_run_graphs(self) -> bool:
        return self.graph_signatures != "off" and importlib.util.find_spec("tensorflow") is not None

    def _open_graph(self, path: Path, signatures: Mapping[str, SignatureSpec]) -> Backend:
        def open_now() -> Backend:
            return open_savedmodel(
                path, signatures, self.tags, threads=self.graph_threads, inter_op_threads=self.inter_op_threads
            )

        return LazyBackend(open_now) if self.graph_signatures == "lazy" else open_now()
