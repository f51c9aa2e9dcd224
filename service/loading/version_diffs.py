"""Compares versions of a model for requests, keeps the results, and keeps drifted versions from being served."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from service.artifact.manifest import MANIFEST_PATH
from service.comparison.document import VersionDiff
from service.comparison.versions import compare_rows, compare_versions
from service.errors import ArtifactError, ServiceError
from service.types import Array
from service.versions.loads import LoadRules
from service.versions.servable import LoadedServable, Servable

logger = logging.getLogger(__name__)

# Largest number of results of comparisons that are kept; each has some kilobytes for each table.
_MAX_KEPT = 32


class VersionDiffs:
    """The comparisons of versions that were asked for, the last ones kept. Concurrency: any thread.

    A comparison runs in the calling thread; one runs at a time, so that requests keep the other processors.

    Args:
      loaded: returns the AVAILABLE versions; their rows are compared with the deltas that changed them.
      folder: returns the folder of a model's version; raises NotFound.
    """

    def __init__(self, loaded: Callable[[], list[LoadedServable]], folder: Callable[[str, int], Path]) -> None:
        self._loaded = loaded
        self._folder = folder
        self._one_at_a_time = threading.Lock()
        self._kept: OrderedDict[tuple[Any, ...], VersionDiff] = OrderedDict()

    def of_request(self, model: str, old: int, new: int) -> Mapping[str, Any]:
        folders = self._folder(model, old), self._folder(model, new)
        return {"model": model, **self._compare(model, old, new, folders).to_json()}

    def rows_of_request(self, model: str, table: str, old: int, new: int, ids: Array) -> tuple[Array, bool]:
        folders = self._folder(model, old), self._folder(model, new)
        mapped = {one.version: _mapped(one) for one in self._versions(model)}
        with self._one_at_a_time:
            return compare_rows(*folders, table, ids, served=(mapped.get(old, {}), mapped.get(new, {})))

    def gated(self, rules: LoadRules, max_drift: float) -> LoadRules:
        """Returns rules that load no version which drifted more than max_drift from the newest AVAILABLE version of its
        model.

        An older version than that one is loaded in any case: the way back to it stays open.

        Args:
          max_drift: per cent, as Settings.max_drift; 100: versions are not compared.
        """
        if max_drift >= 100:
            return rules

        def load_if_near(model: str, version: int, path: Path) -> Servable:
            served = max(self._versions(model), key=lambda servable: servable.version, default=None)
            if served is not None and served.version < version:
                # The new version is compared before it is loaded, so that a version which drifted too far costs no
                # load.
                self._check(served, version, path, max_drift)
            return rules.load(model, version, path)

        return replace(rules, load=load_if_near)

    def _check(self, served: Servable, version: int, path: Path, max_drift: float) -> None:
        model = served.name
        try:
            folders = self._folder(model, served.version), path
            found = self._compare(model, served.version, version, folders)
        except ServiceError as error:
            # If the served version's files can not be read, the new version loads without a comparison. If the new
            # version's own files can not be read, its load fails anyway.
            extra = {"model": model, "version": version, "served": served.version, "reason": error.message}
            logger.warning("versions can not be compared: the new one is loaded", extra=extra)
        else:
            _refuse_drifted(found, max_drift)

    def _compare(self, model: str, old: int, new: int, folders: tuple[Path, Path]) -> VersionDiff:
        servable = next((one for one in self._versions(model) if one.version == old), None)
        deltas = None if servable is None or servable.deltas is None else servable.deltas.status().last_sequence
        key = (model, old, new, deltas, *map(_identity, folders))
        with self._one_at_a_time:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            started_s = time.monotonic()
            mapped = {} if servable is None else _mapped(servable)
            found = compare_versions(*folders, names=(str(old), str(new)), served=mapped)
            self._kept[key] = found
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        seconds = round(time.monotonic() - started_s, 3)
        extra = {"model": model, "version": old, "to": new, "drift_percent": found.drift_percent, "seconds": seconds}
        logger.info("compared versions", extra=extra)
        return found

    def _versions(self, model: str) -> list[Servable]:
        return [one.servable for one in self._loaded() if one.servable.name == model]


def _refuse_drifted(found: VersionDiff, max_drift: float) -> None:
    if faults := found.refusals(max_drift):
        raise ArtifactError(
            f"The version drifted (--max_drift={max_drift:g}): {'; '.join(faults)}. To serve it anyway, restart with a "
            "larger --max_drift; `model-export diff` shows the rows."
        )


def _mapped(servable: Servable) -> dict[str, Any]:
    return {name: table for name, table in servable.tables.items() if name not in servable.remote_tables}


def _identity(folder: Path) -> tuple[str, int, int]:
    """Returns a value that changes when the manifest in a version's folder is replaced."""
    try:
        found = (folder / MANIFEST_PATH).stat()
    except OSError:
        return str(folder), 0, 0
    return str(folder), found.st_mtime_ns, found.st_ino
