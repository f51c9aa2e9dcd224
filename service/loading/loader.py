"""Loads a version folder into a servable by rules from the settings, and rebuilds a servable on tables with deltas."""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Container, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from service.artifact.completeness import check_tree
from service.artifact.delta_file import fingerprint_of
from service.artifact.manifest import NOTICE, Manifest
from service.artifact.row_labels import RowLabels, open_labels
from service.artifact.signature_def import SERVE_TAGS, check_saved_model_config, read_meta_graph, read_signatures
from service.configuration.config_files import read_proto_text
from service.configuration.settings import Settings, StartError
from service.deltas.overlay import Overlay, PrivateMaps
from service.deltas.rules import DeltaRules, JournalPruning
from service.deltas.version_deltas import Target
from service.errors import ArtifactError, DataLoss, InvalidRequest, ServiceError
from service.graph.lazy import LazyBackend
from service.graph.native_form import NativeGraph, PythonOnly
from service.loading.feature_lookups import CompileNative
from service.loading.table_pages import PagedTables, TablePages, TableVerification
from service.loading.warmup import replay_requests, warm_up
from service.tables.backend import OpenedLookups, open_lookups
from service.tables.guarded_files import Stored
from service.tables.remote_table import RemoteTable
from service.tables.residency import Residency
from service.tables.table import MappedTable
from service.types import Array, GraphThreads, runnable
from service.versions.loads import Load, LoadRules
from service.versions.model_config import Origin
from service.versions.servable import Servable
from service.wire.config_protos import BatchingParameters, parse_batching_text

if TYPE_CHECKING:
    from service.loading.graph_opening import GraphOpening


# Name of the file with one version's batching parameters, in the version's folder beside saved_model.pb.
PER_MODEL_FILE = "batching_params.pbtxt"
# The batching parameters of a server without a file of them; the thread_pool_name is TensorFlow Serving's default.
DEFAULT = BatchingParameters(thread_pool_name="model_server_batch_threads")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchingRules:
    """The rules by which the native core batches the graph runs of each version. Concurrency: any thread.

    parameters: for every model, unless is_per_model.
    is_per_model: only a version with a PER_MODEL_FILE is batched, with the parameters of that file alone.
    """

    parameters: BatchingParameters
    is_per_model: bool

    def parameters_of(self, artifact: Path) -> BatchingParameters | None:
        """Returns a version's batching parameters, if it has any; raises ArtifactError for a wrong PER_MODEL_FILE."""
        if not self.is_per_model:
            return self.parameters
        path = artifact / PER_MODEL_FILE
        if not path.exists():
            return None
        try:
            parameters = read_parameters(path)
        except InvalidRequest as error:
            raise ArtifactError(error.message) from error
        if parameters.num_batch_threads is not None:
            logger.info("num_batch_threads is the server's, not a model's", extra={"path": str(path)})
        return parameters


def read_rules(parameters_file: str, is_per_model: bool) -> BatchingRules:
    return BatchingRules(read_parameters(Path(parameters_file)) if parameters_file else DEFAULT, is_per_model)


def read_parameters(path: Path) -> BatchingParameters:
    return parse_batching_text(read_proto_text(path), str(path))


def with_deltas(
    servable: Servable, lookups: OpenedLookups, artifact: Path, rules: DeltaRules, residency: Residency
) -> Servable:
    """Returns a servable whose tables have all present deltas, and will get later deltas.

    Raises:
      ArtifactError: the version's files are gone.
    """
    manifest = Manifest.read(artifact)
    if manifest is None or not (lookups.tables or lookups.remote):
        return servable
    manifest = lookups.fitting(manifest)
    # The private maps, which have the changed rows, are not locked in memory, because that would copy them whole. Locks
    # on the version's own maps keep the shared pages in memory.
    residency = replace(residency, lock="off")

    def rebuilt(tables: Mapping[str, MappedTable]) -> Servable:
        residency.apply(artifact, tables)
        return on_tables(followed, lookups, tables)

    target = Target(
        model=servable.name,
        version=servable.version,
        artifact=artifact,
        fingerprint=fingerprint_of(artifact),
        tables={
            **{name: table.info for name, table in lookups.tables.items()},
            **{name: table.info for name, table in lookups.remote.items()},
        },
        keys=lookups.keys,
        copied=_copied(servable, lookups),
        remote={name: table.changes for name, table in lookups.remote.items()},
    )
    deltas = rules.follow(target, Overlay(PrivateMaps(artifact, manifest, lookups.files), lookups.tables, rebuilt))
    followed = replace(servable, deltas=deltas)
    return deltas.at_load(followed)


def on_tables(servable: Servable, lookups: OpenedLookups, tables: Mapping[str, MappedTable]) -> Servable:
    """Returns a copy of a servable that reads the given tables, which have the names and shapes of its own.

    Both servables add to the same counts of reads, and only one of them is closed.
    """
    native = None if servable.native is None else servable.native.on_tables(tables)
    return replace(servable, tables={**tables, **lookups.remote}, native=native)


def _copied(servable: Servable, lookups: OpenedLookups) -> tuple[str, ...]:
    """Returns the signatures whose graphs have copies of the tables, and so would not see changed rows."""
    # The module of towers is imported here and not at the top, because a version that has only lookups does not need
    # it.
    from service.graph.tower import TowerBackend

    return tuple(
        sorted(
            name
            for name, backend in servable.backends.items()
            if backend is not lookups.backend and not isinstance(backend, TowerBackend)
        )
    )


class WarmupObserver(Protocol):
    """The observer that counts replays of warm-up requests. status: canonical code. Must not raise."""

    def __call__(self, *, model: str, version: int, path: str, status: str, seconds: float, records: int) -> None: ...


class OpenRemote(Protocol):
    """The function that opens a version's remote tables, which lie in clusters. Concurrency: any thread.

    Raises:
      ArtifactError: a cluster does not hold the version's table, or can not be reached; or a table is named remote that
        does not exist.
    """

    def __call__(
        self, model: str, version: int, artifact: Path, manifest: Manifest | None
    ) -> Mapping[str, RemoteTable]: ...


# Type of a function that returns the hot rows of a model's version: table -> [n] int64 ids.
HotRows = Callable[[str, int], Mapping[str, Array]]
FillCaches = Callable[[Servable, Path], None]


@dataclass(frozen=True, slots=True)
class ServableLoader:
    """The loader, which turns a version folder into a servable. Concurrency: any thread.

    graph_signatures: "auto", "whole", "lazy" or "off", as in Settings.
    warmup_iterations: how often each recorded warm-up request is run; 0: warm-up requests are not run.
    has_towers: whether TensorFlow runs only the tower of a signature, after lookups in mapped tables.
    paged_tables: decides how the core reads the tables' pages; None: it reads none.
    show_lookups: called with a version that can answer its lookups, before the version's graphs are opened.
    hot_rows: returns the hot rows of a model's version by table, which are read into memory.
    refuses_ops: says of a model whether a version is refused whose graph touches files, processes or the network.
    is_strict: a version is refused that has a predict which no request can run.
    """

    tags: frozenset[str]
    graph_signatures: str
    compile_native: CompileNative
    warmup_iterations: int = 1
    graph_threads: GraphThreads = GraphThreads(1)
    on_warmup: WarmupObserver | None = None
    batching: BatchingRules | None = None
    has_towers: bool = True
    residency: Residency = Residency()
    paged_tables: PagedTables | None = None
    pages: TablePages | None = None
    verification: TableVerification | None = None
    deltas: DeltaRules | None = None
    show_lookups: Callable[[Servable], None] | None = None
    open_remote: OpenRemote | None = None
    hot_rows: HotRows = lambda model, version: {}
    fill_caches: FillCaches = lambda servable, path: None
    refuses_ops: Callable[[str], bool] = lambda model: False
    is_strict: bool = False

    def __call__(self, name: str, version: int, path: Path) -> Servable:
        """Loads one version from its folder, and runs its warm-up requests.

        Raises:
          ArtifactError: the folder can not be served; the message names the fault.
          DataLoss: a file changed during the load, or does not fit its checksum.
        """
        check_tree(path)
        check_saved_model_config(path)
        if self.refuses_ops(name) and self._can_run_graphs():
            # unsafe_ops is imported here and not at the top, because most servers never refuse a model.
            from service.artifact.unsafe_ops import check_ops

            check_ops(path / "saved_model.pb", self.tags)
        servable, lookups = self._open(name, version, path)
        try:
            batching = None if self.batching is None else self.batching.parameters_of(path)
            graphs = _native_graphs(servable, lookups, batching)
            servable = self.compile_native(servable, lookups, graphs)
            if self.is_strict and (not_run := {n: r for n, r in servable.can_not_run.items() if n in graphs}):
                told = "; ".join(f'"{name}": {reason}' for name, reason in sorted(not_run.items()))
                raise ArtifactError(f"--strict: no request can run these signatures of {path}: {told}")
            self._warm_up(servable, lookups, path)
            self.fill_caches(servable, path)
            if self.deltas is not None and lookups is not None:
                servable = with_deltas(servable, lookups, path, self.deltas, self.residency)
            if why := servable.files.look():
                raise DataLoss(why)
        except ServiceError:
            # Requests may still use this version's lookups, which are served before its graphs are opened. close()
            # keeps the tables mapped, and the kernel reads freed pages again, so these requests stay safe.
            servable.close()
            raise
        return servable

    def _warm_up(self, servable: Servable, lookups: OpenedLookups | None, path: Path) -> None:
        # With --graph_signatures=lazy, a client's first request opens a graph, so the warm-up skips its signatures.
        is_lazy = {name for name, backend in servable.backends.items() if isinstance(backend, LazyBackend)}
        cold = frozenset(servable.signatures.keys() - servable.backends.keys() | servable.not_run.keys() | is_lazy)
        if lookups is not None and (names := servable.backends.keys() - lookups.lookup_names - cold):
            # This module is imported here and not at the top, because a version that has only lookups does not need it.
            from service.graph.table_reads import writing_signatures

            # What a signature writes must be as it was saved when the first client asks, as in TensorFlow Serving.
            warm_up(servable, sorted(names - writing_signatures(read_meta_graph(path / "saved_model.pb", self.tags))))
        if self.warmup_iterations:
            self._replay_requests(servable, path, cold)
        if servable.native is not None:
            # Counts and hot rows are of clients' requests.
            servable.native.forget_counts()

    def _replay_requests(self, servable: Servable, path: Path, cold: frozenset[str]) -> None:
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

    def _open(self, name: str, version: int, path: Path) -> tuple[Servable, OpenedLookups | None]:
        signatures = read_signatures(path / "saved_model.pb", self.tags)
        manifest = Manifest.read(path)
        if manifest is None:
            if self.open_remote is not None:
                self.open_remote(name, version, path, None)
            if not self._can_run_graphs():
                raise ArtifactError(
                    f"{path} has no lookup manifest, so all of it needs TensorFlow, and this server runs without; "
                    "install the extra [tensorflow] or use the full image"
                )
            graph = self._graph_opening().whole(path)
            return Servable(name, version, signatures, dict.fromkeys(runnable(signatures), graph)), None
        if self.tags != SERVE_TAGS:
            # The manifest lists the signatures of the MetaGraph with the tag "serve"; the MetaGraph that the settings
            # choose may have fewer, over the same tables. The manifest's entries of missing signatures are left out.
            described = {name: entry for name, entry in manifest.signatures.items() if name in signatures}
            manifest = replace(manifest, signatures=described)
        remote = self.open_remote(name, version, path, manifest) if self.open_remote is not None else {}
        lookups = open_lookups(path, manifest, signatures, remote)
        for signature, fault in lookups.faults.items():
            told = {"model": name, "version": version, "signature": signature, "reason": fault}
            logger.warning("signature is left to its graph: its manifest does not fit", extra=told)
        manifest = lookups.fitting(manifest)
        pages, residency = self.pages, self.residency
        if self.paged_tables is not None:
            lookups = replace(lookups, paging=self.paged_tables.paging(path, lookups.tables))
        lookups.files.is_kept = lookups.paging == "fits"
        if lookups.paging == "larger":
            # For tables larger than memory, the kernel must read only the page of a row. With huge pages, one hot row
            # would keep 2 MB in memory.
            pages, residency = None, Residency(advice="random", is_warmed=residency.is_warmed)
        # Pages are made huge before tables are verified, so that the checksums are compared with the pages that were
        # read again.
        are_made = pages.make(name, lookups.files) if pages is not None else None
        if self.verification is not None:
            # Tables are verified before residency.apply(), so that verification can drop each page that it has read:
            # after apply(), the pages would stay in memory.
            stored = _stored(path, manifest, remote)
            self.verification.check(name, lookups.files, stored, None if are_made is None else are_made.wait)
        residency.apply(path, lookups.tables, self.hot_rows(name, version))
        servable = Servable(
            name,
            version,
            lookups.signatures,
            dict.fromkeys(lookups.lookup_names, lookups.backend),
            {**lookups.tables, **remote},
            lookups.backend.vocabularies,
            lookups.files,
            signature_faults=lookups.faults,
            remote_tables=frozenset(remote),
            keys=lookups.keys,
            labels=_labels(path, manifest, lookups),
            unproven=tuple(map(str, manifest.provenance.get("unproven", ()))),
            notice=str(manifest.provenance.get(NOTICE, "")),
        )
        if servable.notice:
            logger.warning(servable.notice, extra={"model": name, "version": version})
        graph_names = [s for s in runnable(signatures) if s not in lookups.lookup_names]
        if graph_names and self._can_run_graphs():
            if self.show_lookups is not None and self.graph_signatures != "lazy":
                servable = self._show(servable, lookups, path, self.show_lookups)
            predicts = self._graph_opening().predicts(path, manifest, lookups, graph_names)
            servable = replace(servable, backends={**servable.backends, **predicts}, is_loading=False)
        return servable, lookups

    def _show(
        self, servable: Servable, lookups: OpenedLookups, path: Path, show: Callable[[Servable], None]
    ) -> Servable:
        """Shows a version's lookups to requests before its graphs are opened, unless it may have deltas; returns the
        servable as shown.
        """
        if not servable.backends:
            return servable
        if self.deltas is not None and self.deltas.may_have(servable.name, servable.version, path):
            # A version with deltas answers no lookups before its load ends, because deltas are applied only then, and
            # lookups would return outdated rows before.
            return servable
        servable = replace(servable, is_loading=True)
        servable = self.compile_native(servable, lookups, {})
        show(servable)
        return servable

    def _can_run_graphs(self) -> bool:
        return self.graph_signatures != "off" and importlib.util.find_spec("tensorflow") is not None

    def _graph_opening(self) -> GraphOpening:
        # graph_opening is imported here and not at the top, so that a version's lookups are answered before the modules
        # of graphs are imported.
        from service.loading.graph_opening import GraphOpening

        is_lazy = self.graph_signatures == "lazy"
        return GraphOpening(self.compile_native, self.tags, is_lazy, self.graph_threads, self.has_towers)


def _native_graphs(
    servable: Servable, lookups: OpenedLookups | None, batching: BatchingParameters | None
) -> Mapping[str, NativeGraph | PythonOnly]:
    if lookups is not None and all(backend is lookups.backend for backend in servable.backends.values()):
        return {}
    # As in _graph_opening().
    from service.loading.graph_opening import native_graphs

    return native_graphs(servable, batching)


def _stored(path: Path, manifest: Manifest, remote: Container[str]) -> list[Stored]:
    found = []
    for name, entry in manifest.tables.items():
        if name in remote:
            continue
        found.append(Stored(f"table {name!r}", path / entry.file, entry.offset, entry.nbytes, entry.crc32c))
        if (scale := entry.scale) is not None:
            what = f"scale of table {name!r}"
            found.append(Stored(what, path / scale.file, scale.offset, scale.nbytes, scale.crc32c))
    return found


def _labels(path: Path, manifest: Manifest, lookups: OpenedLookups) -> Mapping[str, RowLabels]:
    from_keys = {table: labels for table, keys in lookups.keys.items() if (labels := keys.labels) is not None}
    return {**from_keys, **open_labels(path, manifest, lookups.files.map)}


def loader_of(
    settings: Settings,
    compile_native: CompileNative,
    *,
    wake_follower: Callable[[], None],
    origin_of: Callable[[str], Origin],
) -> ServableLoader:
    """Returns the loader of the settings; the server adds what it opens for all versions."""
    choice = settings.refuse_unsafe_ops
    return ServableLoader(
        settings.tags,
        settings.graph_signatures,
        partial(compile_native, has_hot_rows=settings.hot_rows, strict_shapes=settings.strict_shapes),
        settings.warmup_iterations,
        settings.parallelism,
        has_towers=settings.graph_signatures != "whole",
        residency=residency_of(settings),
        deltas=delta_rules(settings, wake_follower),
        refuses_ops=lambda model: choice == "on" or (choice == "auto" and origin_of(model) != "operator"),
        is_strict=settings.strict,
    )


def load_rules_of(settings: Settings, load: Load) -> LoadRules:
    pruning = journal_pruning(settings)
    return LoadRules(
        load,
        max_retries=settings.max_num_load_retries,
        retry_interval_s=settings.load_retry_interval_s,
        settle_s=settings.version_settle_s,
        slots=threading.BoundedSemaphore(settings.num_load_threads) if settings.num_load_threads else nullcontext(),
        load_timeout_s=settings.load_timeout_s,
        on_look=pruning.looked if pruning is not None else lambda model, versions: None,
        reloads_replaced=settings.reload_replaced_versions,
    )


def batching_of(settings: Settings) -> BatchingRules | None:
    if not settings.enable_batching:
        if settings.batching_parameters_file:
            raise StartError("--batching_parameters_file is set without setting --enable_batching to true.")
        return None
    try:
        return read_rules(settings.batching_parameters_file, settings.enable_per_model_batching_parameters)
    except InvalidRequest as error:
        file = settings.batching_parameters_file
        raise StartError(f"--batching_parameters_file={file}: {error.message.removeprefix(f'{file}: ')}") from error


def delta_rules(settings: Settings, wake: Callable[[], None]) -> DeltaRules | None:
    if not settings.delta_poll_wait_seconds:
        return None
    return DeltaRules(
        journal_folder=_journal_folder(settings),
        max_file_bytes=settings.delta_journal_max_mib << 18,
        max_journal_bytes=settings.delta_journal_max_mib << 20,
        wake=wake,
    )


def journal_pruning(settings: Settings) -> JournalPruning | None:
    folder = _journal_folder(settings)
    return JournalPruning(folder) if folder is not None and settings.delta_poll_wait_seconds else None


def _journal_folder(settings: Settings) -> Path | None:
    return Path(settings.delta_journal_dir).absolute() if settings.delta_journal_dir else None


def residency_of(settings: Settings) -> Residency:
    pages = settings.table_pages
    if pages == "auto":
        # With --table_pages=auto, huge pages are asked for before a version answers only if --warm=tables reads every
        # page then anyway.
        pages = "huge" if settings.warm == "tables" else "normal"
    return Residency(
        is_prefaulted=settings.warm == "tables",
        lock=settings.table_lock,
        advice=pages,
        is_warmed=settings.warm == "hot_rows",
    )
