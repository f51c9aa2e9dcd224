"""Opens the TensorFlow graphs of a version's signatures: whole, or without their lookups (a tower)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from service.artifact.manifest import Manifest
from service.artifact.signature_def import SERVE_TAGS
from service.errors import ArtifactError
from service.graph.lazy import LazyBackend
from service.graph.native_form import PythonOnly
from service.graph.native_graph import native_tower
from service.graph.savedmodel import SavedModelBackend, open_savedmodel
from service.graph.tower import TowerBackend
from service.loading.feature_lookups import CompileNative
from service.loading.towers import native_plan, open_towers
from service.tables.backend import OpenedLookups
from service.types import Backend

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraphOpening:
    """The opener of TensorFlow graphs, with the settings that all versions share. Concurrency: any thread.

    is_lazy: whether a graph is opened only at its first request. The other fields are those of ServableLoader.
    """

    compile_native: CompileNative
    tags: frozenset[str]
    is_lazy: bool
    threads: int
    inter_op_threads: int | None
    has_towers: bool

    def whole(self, path: Path) -> Backend:
        open_now = partial(self._open_now, path)
        return LazyBackend(open_now) if self.is_lazy else open_now()

    def predicts(
        self, path: Path, manifest: Manifest, lookups: OpenedLookups, names: Sequence[str]
    ) -> dict[str, Backend]:
        specs = {name: lookups.signatures[name] for name in names}
        if self.is_lazy:
            # A graph that a client's first request opens (a lazy graph) runs whole: its lookups are not taken out,
            # because the graph is not read before that request.
            return dict.fromkeys(names, self.whole(path))
        backends: dict[str, Backend] = {}
        tower = None
        if self.has_towers and self.tags == SERVE_TAGS:
            kept_whole = {name for name, entry in manifest.signatures.items() if entry.run == "whole"}
            cut_specs = {name: spec for name, spec in specs.items() if name not in kept_whole}
            tower = open_towers(
                path,
                manifest,
                lookups,
                cut_specs,
                self.tags,
                self.compile_native,
                threads=self.threads,
                inter_op_threads=self.inter_op_threads,
            )
        if tower is not None:
            tower = _only_run_in_core(tower)
        if tower is not None:
            backends |= dict.fromkeys(tower.cuts, tower)
        if whole := [name for name in names if name not in backends]:
            # The whole graph is opened only if a signature needs it, because TensorFlow then loads all tables.
            try:
                backends |= dict.fromkeys(whole, self._open_now(path))
            except ArtifactError as error:
                if any(name not in lookups.faults for name in whole):
                    if tower is not None:
                        tower.close()
                    raise
                # The whole graph can not be loaded, and only signatures that contradict their manifest entry need it.
                # The version is served without these signatures.
                logger.warning("the graph can not be loaded", extra={"path": str(path), "reason": error.message})
        return backends

    def _open_now(self, path: Path) -> SavedModelBackend:
        return open_savedmodel(path, self.tags, threads=self.threads, inter_op_threads=self.inter_op_threads)


def _only_run_in_core(tower: TowerBackend) -> TowerBackend | None:
    """Returns the tower with those of its signatures that the native core can run cut; None if it can run none so.

    The core runs the others whole.
    """
    kept = {}
    for name, cut in tower.cuts.items():
        found = native_tower(tower, name, native_plan)
        if isinstance(found, PythonOnly):
            logger.info("the whole graph is run", extra={"signature": name, "reason": found.reason})
        else:
            kept[name] = cut
    if not kept:
        tower.close()
        return None
    return replace(tower, cuts=kept)
