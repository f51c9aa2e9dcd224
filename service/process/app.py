"""Builds all parts of the server from the settings, and runs them until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from service.access.access import create_access
from service.access.tls import Wires
from service.configuration.config_files import metrics_paths, read_monitoring_config
from service.configuration.settings import Settings, StartError
from service.configuration.settings_reading import installed_version, otlp_protocol
from service.control.engine import Engine
from service.core.native_servable import RoutePublisher, compile_native
from service.core.statistics import Batcher, Pages, create_batcher
from service.deltas.version_deltas import Follower
from service.errors import ServiceError
from service.graph.library import load_early
from service.http.http_parts import ConsoleSources, HttpParts
from service.loading.feature_lookups import CompileNative
from service.loading.kept_files import HotRowsFiles, indexing_of
from service.loading.loader import batching_of, load_rules_of, loader_of
from service.loading.remote_tables import RemoteFilling, RemoteTables
from service.loading.table_pages import mapped_bytes, paged_tables, table_pages, table_verification
from service.loading.version_diffs import VersionDiffs
from service.observe.history import RecentFailures, RecentRequests, TrafficHistory, VersionHistory
from service.observe.logs import dropped_line_metrics
from service.observe.metrics import Metrics
from service.observe.own_metrics import (
    neighbor_lines,
    page_lines,
    readiness_lines,
    remote_lines,
    remote_status,
    store_lines,
)
from service.observe.request_logs import RequestLogs
from service.observe.request_metrics import Batches
from service.observe.statusz import Statusz
from service.process.bound_ports import Ports, log_listening
from service.process.model_lists import ModelLists
from service.process.resources import UnjoinedThreads, handle_signals, in_own_thread, wait_unless, write_last
from service.remote.address import remote_tables
from service.remote.core_clusters import Clusters
from service.types import State, VersionStatus
from service.versions.model_set import ModelSet
from service.versions.neighbors import NeighborLimits
from service.versions.registry import Registry
from service.versions.servable import LoadedServable, Servable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from service.observe.otel import OtelTracing, Protocol
    from service.process.control_servers import AdminServer
    from service.process.native_servers import NativeServers
    from service.stores.mirror import Stores


def _metrics_paths(file: str) -> tuple[str, ...]:
    try:
        return metrics_paths(read_monitoring_config(Path(file)) if file else None)
    except ServiceError as error:
        raise StartError(f"--monitoring_config_file={file}: {error.message}") from error


def open_stores(settings: Settings) -> Stores | None:
    if not settings.store_cache_dir:
        return None
    try:
        # service.stores is imported here and not at the top, because it imports obstore, an optional extra.
        from service.stores.fetch import CacheInUse
        from service.stores.mirror import Stores
    except ImportError as error:
        raise StartError(
            f"--store_cache_dir needs a package that is not installed ({error}): in a checkout, pip install '.[stores]'"
        ) from error
    folder = Path(settings.store_cache_dir).absolute()
    try:
        return Stores(
            folder,
            settings.store_cache_mib << 20,
            poll_s=settings.store_poll_wait_seconds,
            settle_s=settings.version_settle_s,
        )
    except CacheInUse as error:
        raise StartError(f"--store_cache_dir: {error}") from error
    except OSError as error:
        raise StartError(f"--store_cache_dir={folder} can not be used: {error.strerror}") from error


def start_tracing(settings: Settings) -> OtelTracing | None:
    if settings.tracing == "off":
        return None
    protocol = otlp_protocol()
    if protocol not in ("grpc", "http/protobuf"):
        raise StartError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}: expected grpc or http/protobuf")
    try:
        # service.observe.otel is imported here and not at the top, because it imports OpenTelemetry, an optional extra.
        from service.observe.otel import OtelTracing
    except ModuleNotFoundError as error:
        raise StartError(
            f"--tracing needs a package that is not installed ({error}): in a checkout, pip install '.[otel]'"
        ) from error
    return OtelTracing(cast("Protocol", protocol), {"service.version": installed_version()})


def check_folders(settings: Settings) -> None:
    """Raises StartError for a file in place of a folder that the server writes; else its first write would fail.

    A folder of journals that can not be written refuses upserts alone.
    """
    for name in ("store_cache_dir", "hot_rows_dir", "neighbors_index_dir", "request_log_root"):
        path = getattr(settings, name)
        if os.path.exists(path) and not os.path.isdir(path):
            raise StartError(f"--{name}={path} is a file: name a folder")


# Times its own duration that an update is followed by a pause. An update reads the state of all models, and a thousand
# loading models change their state some thousand times.
_PAUSES = 9


class HealthUpdates:
    """Runs an update at once, or within the pause after the update before. Concurrency: any thread.

    Args:
      update: reads the readiness of the server and its models, and sets the health checks to it.
      clock: seconds, monotonic.
    """

    def __init__(self, update: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._update = update
        self._clock = clock
        # Lock that is held from reading readiness until the health checks are set, so that no older state replaces a
        # newer one.
        self._updating = threading.Lock()
        self._is_wanted = threading.Event()
        self._next_s = 0.0
        threading.Thread(target=self._run, name="health", daemon=True).start()

    def update(self) -> None:
        with self._updating:
            self._update_and_pause()

    def note(self) -> None:
        """Updates the health checks now, or later in another thread if the last update is not long ago."""
        if self._clock() >= self._next_s and self._updating.acquire(blocking=False):
            try:
                self._update_and_pause()
            finally:
                self._updating.release()
            return
        self._is_wanted.set()

    def _update_and_pause(self) -> None:
        begun_s = self._clock()
        self._update()
        now_s = self._clock()
        self._next_s = now_s + _PAUSES * (now_s - begun_s)

    def _run(self) -> None:
        while True:
            self._is_wanted.wait()
            time.sleep(max(self._next_s - self._clock(), 0))
            self._is_wanted.clear()
            try:
                self.update()
            except Exception:
                # Without this thread, most changes of the models' states would not reach the health checks any more.
                logger.exception("health checks are not updated")


class TablePaging:
    """The parts by which the native core reads pages of tables. Concurrency: any thread.

    rule: decides how the pages of a version are read. compile: compiles servables for the core.
    """

    def __init__(
        self,
        settings: Settings,
        clusters: Clusters,
        loaded: Callable[[], Sequence[LoadedServable]],
        batcher: Batcher | None,
    ) -> None:
        self.rule = paged_tables(settings, lambda: sum(mapped_bytes(one.servable.tables) for one in loaded()))
        self._pages = Pages(self.rule.max_bytes)
        batches = None if batcher is None else batcher.core
        self.compile: CompileNative = partial(
            compile_native, clusters=clusters.core, pager=self._pages.core, batcher=batches
        )

    def lines(self) -> list[str]:
        return page_lines(self._pages.counts())


logger = logging.getLogger(__name__)

# The control servers behind the native core start when the first models are loaded, but at the latest after
# _FIRST_LOADS_S. The second number is the pause between two looks at the models, the third how long TensorFlow's import
# waits for these servers.
_FIRST_LOADS_S = 0.3
_LOOK_AGAIN_S = 0.005
_COMPLETE_S = 5.0
# Longest time that hot rows of remote tables are read into the cache before a version is AVAILABLE.
_FILL_S = 10.0
# Number of threads for asyncio.to_thread: for work that neither waits for long nor is frequent.
_NUM_THREADS = 32


class App:
    """The parts of one server process.

    The order at shutdown: readiness fails, listeners close, requests in flight finish, models unload.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._request_logs = RequestLogs(
            tags=sorted(settings.tags),
            max_bytes=settings.request_log_mib << 20,
        )
        self._routes = RoutePublisher(self._request_logs.recorders)
        self._health = HealthUpdates(lambda: self._servers.set_serving(self._registry.is_ready))
        self._registry = Registry(
            self._version_changed, self._routes, on_problem=self._health.note, is_strict=settings.strict_readiness
        )
        self._history, self._recent = VersionHistory(), RecentRequests(settings.slow_request_s)
        self._clusters = Clusters(settings.remote_cache_bytes)
        self._remote = RemoteTables(remote_tables(settings.remote_tables), self._health.note, self._clusters)
        self._registry.problem_beside = self._remote.problem
        check_folders(settings)
        batching, self._stores = batching_of(settings), open_stores(settings)
        batcher = create_batcher(settings, batching.parameters if batching else None)
        paging = TablePaging(settings, self._clusters, self._registry.loaded, batcher)
        more = [
            self._readiness_lines,
            lambda: [] if self._stores is None else store_lines(self._stores.counts()),
            lambda: remote_lines(self._clusters.counts(), self._remote.state()),
            paging.lines,
            lambda: neighbor_lines(self._engine.searches.rows_scanned(), self._engine.searches.indexes.all()),
            self._request_logs.metric_lines,
            dropped_line_metrics,
        ]
        stores = [] if self._stores is None else [self._stores.forget]
        forget = [self._request_logs.forget, lambda model: self._engine.searches.forget(model), *stores]
        in_use, batches = self._registry.models_in_use, batcher.counts if batcher else Batches
        self._metrics = Metrics(self._registry.loaded, more, self._recent, batches, models=in_use, forget=forget)
        self._traffic = TrafficHistory(self._metrics.requests)
        self._failures = RecentFailures(self._metrics.requests.failures)
        self._stop, self._stop_watching = asyncio.Event(), threading.Event()
        self._is_complete, self._forced = threading.Event(), asyncio.Event()
        self._follower = Follower(self._registry, settings.delta_poll_wait_seconds)
        is_served = self._registry.is_available
        self._pages = table_pages(settings, is_served)
        self._verification = table_verification(settings, is_served, lambda model: self._models.look_again(model))
        self._hot_rows = HotRowsFiles(settings.hot_rows_dir, self._registry.loaded)
        self._tracing = start_tracing(settings)
        loader = replace(
            loader_of(
                settings,
                paging.compile,
                wake_follower=self._follower.wake,
                origin_of=lambda model: self._models.origin(model),
            ),
            on_warmup=self._metrics.warmups.warmed_up,
            batching=batching,
            paged_tables=paging.rule,
            pages=self._pages,
            verification=self._verification,
            show_lookups=self._show_lookups,
            open_remote=self._remote.open,
            hot_rows=self._hot_rows.read,
            fill_caches=RemoteFilling(self._clusters, _FILL_S, self._hot_rows.newest),
        )
        rules = replace(
            load_rules_of(settings, loader),
            open_store=None if self._stores is None else self._stores.open,
            on_list=self._remote.configure,
        )
        diffs = VersionDiffs(self._registry.loaded, lambda model, version: self._models.folder(model, version))
        rules = diffs.gated(rules, settings.max_drift)
        if self._tracing is not None:
            rules = replace(rules, load=self._tracing.loading(rules.load))
        self._models: ModelSet = ModelSet(
            self._registry,
            rules,
            poll_interval_s=settings.file_system_poll_wait_seconds,
            reload_timeout_s=settings.model_reload_timeout_s,
            allow_labels_for_unavailable=settings.allow_version_labels_for_unavailable_models,
            on_change=self._health.update,
            on_commit=self._request_logs.configure,
        )
        self._lists = ModelLists(settings, self._models)
        self._engine: Engine = Engine(
            self._registry,
            self._metrics.requests,
            reload=self._lists.reload,
            set_label=self._lists.set_label,
            pin=self._lists.pin,
            tracing=self._tracing,
            on_damage=self._models.look_again,
            compare=diffs,
            neighbor_limits=NeighborLimits(settings.neighbors_threads, settings.neighbors_index_rows),
            indexing=indexing_of(settings.neighbors_index_dir, self._models.folder),
        )
        self._metrics.limit_bytes = settings.bytes_in_flight
        self._access = create_access(settings.auth_config, settings.console_secret_file, self._engine, self._metrics)
        self._tls = Wires(settings, self._metrics.tls)
        access, render, statusz, traffic = self._access, self._metrics.render, self._statusz().read, self._traffic.read
        self._http_parts = HttpParts(
            engine=access.engine if access else self._engine,
            metrics=access.metrics(render) if access else render,
            metrics_paths=_metrics_paths(settings.monitoring_config_file),
            max_body_bytes=settings.max_request_bytes,
            rest_api_timeout_s=settings.rest_api_timeout_s,
            gzip_min_bytes=settings.rest_api_gzip_min_bytes,
            strict_json=settings.rest_api_strict_json,
            callers=access.callers if access else None,
            sessions=access.sessions if access else None,
            console=ConsoleSources(
                version=installed_version,
                labels=self._registry.labels,
                history=self._history.read,
                traffic=access.server_wide(traffic) if access else traffic,
                folders=lambda model: sorted(self._models.folders(model)),
                base_path=lambda model: self._models.base_path(model),
                pinned=self._lists.pinned,
                has_tls=self._tls.http is not None,
            ),
            spans=self._tracing.http_spans if self._tracing else None,
            statusz=access.server_wide(statusz) if access else statusz,
        )
        self._servers = self._create_servers()
        self._admin: AdminServer | None = None

    async def run(self) -> list[str]:
        """Serves until SIGTERM or SIGINT, then shuts down; a second signal cuts the requests in flight.

        Returns:
          The models whose threads could not be ended, because a load can not be interrupted.

        Raises:
          StartError: a port is in use, or the list of models is wrong.
        """
        settings = self._settings
        asyncio.get_running_loop().set_default_executor(UnjoinedThreads(_NUM_THREADS, "asyncio"))
        configs = self._lists.first()
        admin = self._admin = self._create_admin() if settings.admin_port != 0 else None
        self._servers.bind()
        # Orchestrators kill the process 5 seconds after the delay and twice the drain timeout.
        end_s = settings.shutdown_delay_s + 2 * settings.drain_timeout_s + 3.0
        handle_signals(self._stop, force=self._force, on_hangup=self._lists.read_again, end_s=end_s)
        if admin is not None:
            self._servers.held_beside = lambda: admin.bytes_held_total
            admin.start()
        if self._access is not None:
            self._access.watch(self._stop_watching, settings.secrets_poll_s)
        self._models.start(configs)
        if settings.delta_poll_wait_seconds:
            threading.Thread(target=self._follower.run, name="deltas", daemon=True).start()
        self._hot_rows.watch(self._stop_watching)
        self._lists.watch(self._stop_watching)
        self._traffic.watch(self._stop_watching)
        self._failures.watch(self._stop_watching)
        self._remote.watch(self._stop_watching)
        self._tls.run(self._stop_watching, settings.secrets_poll_s)
        try:
            ports = await self._open([config.name for config in configs])
        except BaseException:
            self._servers.stop_now()
            raise
        if ports is not None:
            log_listening(settings, ports, admin.port if admin else None)
        await self._stop.wait()
        await self._shut_down()
        if admin is not None:
            await admin.stop()
        try:
            return await self._stop_models()
        finally:
            if self._tracing is not None:
                await in_own_thread(self._tracing.stop, "tracing-stop")

    def _statusz(self) -> Statusz:
        return Statusz(
            installed_version,
            self._settings,
            self._registry,
            self._recent,
            lambda: self._metrics.requests.read()[0],
            logs=self._request_logs.read,
            stores=lambda: [] if self._stores is None else self._stores.status(),
            remote=lambda: remote_status(self._clusters.counts()),
            clusters=self._remote.clusters,
            data_plane=lambda: self._servers.state(),
            core=lambda: self._metrics.core(),
            files=self._metrics.read_files,
            failures=self._failures.read,
        )

    def _create_admin(self) -> AdminServer:
        # control_servers is imported here and not at the top, because it imports FastAPI, which takes long.
        from service.process.control_servers import AdminServer

        return AdminServer(self._settings, self._tls.http, self._http_parts, self._lists.reload_config)

    async def _open(self, models: Sequence[str]) -> Ports | None:
        """Opens the ports, first_loads_timeout_s after the start at the latest, and starts the control servers.

        The ports open when the first models are loaded or have failed; at once if first_loads_timeout_s is 0.

        Returns:
          None if the server was stopped before.
        """
        timeout_s = self._settings.first_loads_timeout_s
        started_s = time.monotonic()
        ports = None if timeout_s else await self._servers.open()
        # The control servers start after the first models are loaded, because importing FastAPI and grpcio would
        # delay the loads by as much as loading some hundred tables.
        if await self._have_settled(models, started_s + _FIRST_LOADS_S) and ports is None:
            ports = await self._servers.open()
        await self._servers.complete()
        self._is_complete.set()
        if ports is None:
            await self._have_settled(models, started_s + timeout_s)
            ports = None if self._stop.is_set() else await self._servers.open()
        return ports

    async def _have_settled(self, models: Sequence[str], end_s: float) -> bool:
        """Waits until each model is loaded, has failed, or answers lookups; False if end_s or a stop comes before."""
        while not (is_done := all(map(self._models.is_settled, models))) and time.monotonic() < end_s:
            if self._stop.is_set():
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        return is_done

    def _show_lookups(self, servable: Servable) -> None:
        if self._registry.show_lookups(servable):
            extra = {"model": servable.name, "version": servable.version, "told": ""}
            logger.info("lookups are answered while the version is LOADING", extra=extra)
            # The load waits here, at most _COMPLETE_S seconds, until the control servers have started: it reads graphs
            # next, which takes the interpreter's lock from them. TensorFlow's library needs no lock while it loads.
            load_early()
            self._is_complete.wait(_COMPLETE_S)

    def _create_servers(self) -> NativeServers:
        # native_servers is imported here and not at the top, because it imports the native core, and tests import this
        # module without one.
        from service.process.native_servers import NativeServers

        return NativeServers(
            self._settings,
            self._engine,
            self._http_parts,
            routes=self._routes,
            metrics=self._metrics,
            recent=self._recent,
            tls=self._tls,
            access=self._access,
            on_end=self._stop.set,
            on_fault=self._set_fault,
            on_damage=self._models.look_again,
        )

    def _set_fault(self, fault: str) -> None:
        self._registry.fault = fault
        self._health.update()

    def _force(self) -> None:
        self._forced.set()
        self._servers.stop_now()
        if self._admin is not None:
            self._admin.stop_now()

    async def _shut_down(self) -> None:
        self._registry.drain()
        self._models.drain()
        for beside in (self._pages, self._verification):
            if beside is not None:
                beside.stop()
        self._health.update()
        await wait_unless(self._forced, self._settings.shutdown_delay_s)
        await self._servers.stop()
        self._stop_watching.set()
        await write_last({"request logs": self._request_logs.stop, "hot rows": self._hot_rows.write})
        self._follower.stop()
        logger.info("stopped")

    async def _stop_models(self) -> list[str]:
        end_s = time.monotonic() + self._settings.drain_timeout_s
        while True:
            loading = await in_own_thread(lambda: self._models.stop(0.1), "models-stop")
            if not loading or self._forced.is_set() or time.monotonic() >= end_s:
                return sorted({*loading, *self._models.hanging()})

    def _version_changed(self, model: str, status: VersionStatus) -> None:
        self._metrics.version_changed(model, status)
        self._history.note(model, status)
        self._health.note()
        log = logger.info if status.state in (State.AVAILABLE, State.END) else logger.debug
        # "loaded" tells a person the same of a version that is AVAILABLE.
        told = "" if status.state is State.AVAILABLE else f"{model} version {status.version} is not served any more"
        extra = {"model": model, "version": status.version, "state": status.state.name, "told": told}
        log("version state", extra=extra)

    def _readiness_lines(self) -> list[str]:
        can_answer = {name: not self._registry.problem(name) for name in self._registry.models()}
        return readiness_lines(self._registry.is_ready, can_answer)
