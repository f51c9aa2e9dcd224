"""Builds the parts from the settings, joins them, and runs them until a signal: the one place that knows them all."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from service.access import create_access
from service.admin_server import AdminServer
from service.auth_config import AuthConfigError
from service.codecs.model_config_proto import parse_config_text
from service.core.admission.admission import Admission
from service.core.admission.limits import Limits
from service.core.engine import Engine
from service.core.errors import ConfigConflict, InvalidRequest, ServiceError
from service.core.model_config import ModelConfig
from service.core.model_set import ModelSet
from service.core.registry import Registry
from service.core.repository import LoadRules
from service.core.types import State, VersionStatus
from service.delta_settings import delta_rules
from service.deltas.follower import Follower
from service.direct.http_bodies import DirectHttp
from service.graph_batching import GraphBatching, create_batching
from service.grpc_transport import create_grpc_server
from service.http_server import HttpServer
from service.loading import ServableLoader
from service.lookup.row_pool import row_runner
from service.memory_settings import residency_of
from service.metrics.metrics import Metrics
from service.model_config import ConfigFile
from service.monitoring_config import metrics_paths, read_monitoring_config
from service.process_limits import max_connections
from service.recent_requests import RecentRequests
from service.request_log.request_logs import RequestLogs
from service.settings import Settings
from service.settings_reading import installed_version
from service.statusz.collect import Statusz
from service.statusz.page import page
from service.table_verification import table_verification
from service.tls.wires import TlsError, Wires, opener
from service.tracing.start import TracingUnavailable, start_tracing
from service.transports.http.calls import API as HTTP_API
from service.transports.http.connection_guard import ConnectionGuard, ConnectionLimits
from service.transports.http.guarded_hot import hot_protocol
from service.transports.http.http_app import create_http_app
from service.workers.crew import Crew, Own

if TYPE_CHECKING:
    from service.tracing.otel import OtelTracing

logger = logging.getLogger(__name__)


class StartError(Exception):
    """The server can not start; the message says what to change."""


class App:
    """One server process.

    Order at shutdown: readiness fails, listeners close, requests in flight finish, models unload.

    Args:
      crew: the other workers that it is one of; None: it is the only process.
    """

    def __init__(self, settings: Settings, crew: Crew | None = None) -> None:
        self._settings = settings
        self._crew = crew
        self._registry = Registry(self._version_changed)
        self._request_logs = RequestLogs(
            tags=sorted(settings.tags),
            max_bytes=settings.request_log_file_mib << 20,
            max_files=settings.request_log_files,
            has_answers=settings.request_log_answers,
        )
        self._recent = RecentRequests(settings.slow_request_s)
        self._metrics = Metrics(self._registry.loaded, [self._request_logs.metric_lines], self._recent)
        self._stop_watching = threading.Event()
        self._is_forced = False
        self._follower = Follower(self._registry, settings.delta_poll_wait_seconds)
        self._batching = _create_batching(settings, self._metrics)
        self._verification = table_verification(
            settings, self._registry.is_available, lambda model: self._models.look_again(model)
        )
        threads, inter_op_threads = settings.parallelism
        self._tracing = _start_tracing(settings, crew)
        rules = LoadRules(
            load=ServableLoader(
                settings.tags,
                settings.graph_signatures,
                threads,
                settings.warmup_iterations,
                inter_op_threads,
                on_warmup=self._metrics.warmups.warmed_up,
                batching=self._batching,
                has_towers=settings.graph_towers,
                tower_batch_rows=settings.tower_batch_rows,
                lookup_runner=row_runner(settings.lookup_threads),
                residency=residency_of(settings),
                verification=self._verification,
                deltas=delta_rules(settings, self._follower.wake),
            ),
            max_retries=settings.max_num_load_retries,
            retry_interval_s=settings.load_retry_interval_s,
            settle_s=settings.version_settle_s,
            slots=threading.BoundedSemaphore(settings.num_load_threads) if settings.num_load_threads else nullcontext(),
        )
        if self._tracing is not None:
            rules = replace(rules, load=self._tracing.loading(rules.load))
        self._models = ModelSet(
            self._registry,
            rules,
            poll_interval_s=settings.file_system_poll_wait_seconds,
            reload_timeout_s=settings.model_reload_timeout_s,
            allow_labels_for_unavailable=settings.allow_version_labels_for_unavailable_models,
            on_change=self._show_health,
            on_commit=self._request_logs.configure,
        )
        self._config_file: ConfigFile | None = None
        if settings.model_config_file:
            self._config_file = ConfigFile(
                Path(settings.model_config_file),
                settings.load_retry_interval_s,
                on_taken=crew.config_taken if crew else lambda text: None,
            )
        self._engine = Engine(
            self._registry,
            self._metrics.requests,
            max_response_bytes=settings.max_response_bytes,
            reload=self._reload,
            admission=_admission(settings, self._metrics),
            recorders=self._request_logs.recorders,
            tracing=self._tracing,
            on_damage=self._models.look_again,
        )
        self._metrics.held = self._engine.admission.held
        try:
            self._access = create_access(settings.auth_config, self._engine, self._metrics.requests, self._metrics.auth)
        except AuthConfigError as error:
            raise StartError(f"--auth_config={settings.auth_config}: {error}") from error
        try:
            self._tls = Wires(settings, self._metrics.tls)
        except TlsError as error:
            raise StartError(str(error)) from error
        self._grpc = create_grpc_server(settings, self._engine, crew, self._tls, self._access)

    async def run(self) -> list[str]:
        """Serves until SIGTERM or SIGINT; a second signal does not wait for requests in flight.

        Returns:
          The models whose threads could not be ended, for a load can not be interrupted.

        Raises:
          StartError: a port is in use, or the list of models is wrong.
        """
        settings = self._settings
        stop = asyncio.Event()
        configs = self._first_models()
        if self._crew is not None:
            # Before anything listens: a listener asks the crew whether it may.
            self._join(self._crew, stop)
        http_socket = self._crew.http_listener if self._crew else _listen(settings.host, settings.rest_api_port)
        admin = self._admin_server()
        try:
            grpc_port = self._grpc.start()
        except OSError as error:
            http_socket.close()
            raise StartError(f"{error} Choose another with --port.") from error
        http = self._http_server()
        self._handle_signals(stop, http)
        serving = asyncio.create_task(http.serve(sockets=[http_socket]))
        serving.add_done_callback(lambda _: stop.set())
        if admin is not None:
            admin.start()
        if self._access is not None:
            self._access.watch(self._stop_watching, settings.auth_config_poll_wait_seconds)
        self._models.start(configs)
        if settings.delta_poll_wait_seconds:
            threading.Thread(target=self._follower.run, name="deltas", daemon=True).start()
        if self._config_file is not None and self._polls_config_file:
            polling = (self._reload, self._stop_watching, settings.model_config_file_poll_wait_seconds)
            threading.Thread(target=self._config_file.run, args=polling, name="config-file", daemon=True).start()
        self._tls.run(self._stop_watching, settings.file_system_poll_wait_seconds)
        if self._crew is None:
            http_port = http_socket.getsockname()[1]
            ports = {"http_port": http_port, "grpc_port": grpc_port, "admin_port": admin.port if admin else None}
            logger.info("listening", extra={"host": settings.host, **ports})
        else:
            self._crew.listening()
        await stop.wait()
        await self._shut_down(http, serving)
        if admin is not None:
            await admin.stop()
        try:
            return await self._stop_models()
        finally:
            if self._batching is not None:
                self._batching.scheduler.stop()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.stop)

    def _join(self, crew: Crew, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def leave() -> None:
            loop.call_soon_threadsafe(stop.set)

        crew.join(
            Own(
                reload=self._models.reload,
                render=self._metrics.render,
                is_ready=lambda: self._registry.is_ready,
                leave=leave,
            )
        )

    def _reload(self, models: Sequence[ModelConfig], deadline_s: float | None = None) -> None:
        if self._crew is None:
            self._models.reload(models, deadline_s)
        else:
            self._crew.reload(models, deadline_s, self._settings.model_reload_timeout_s)

    @property
    def _polls_config_file(self) -> bool:
        polls = self._crew is None or self._crew.polls_config_file
        return polls and self._settings.model_config_file_poll_wait_seconds > 0

    def _first_models(self) -> tuple[ModelConfig, ...]:
        settings = self._settings
        if self._crew is not None and self._crew.models is not None:
            # What holds now may have come by request.
            if self._config_file is not None:
                self._config_file.take(self._crew.config_text)
            return self._crew.models
        if self._config_file is None:
            return (ModelConfig(settings.model_name, str(Path(settings.model_base_path).absolute())),)
        try:
            configs = self._config_file.read(self._crew.config_text if self._crew else None)
            self._models.check(configs)
        except ServiceError as error:
            hint = ""
            if isinstance(error, ConfigConflict):
                hint = ". Labels can be set at the start with --allow_version_labels_for_unavailable_models=true"
            raise StartError(f"--model_config_file={settings.model_config_file}: {error.message}{hint}") from error
        return configs

    def _http_server(self) -> HttpServer:
        settings, access = self._settings, self._access
        engine = access.engine if access else self._engine
        statusz = self._statusz()
        http_app = create_http_app(
            engine,
            metrics=access.metrics(self._render) if access else self._render,
            metrics_paths=self._metrics_paths(),
            max_body_bytes=settings.max_request_bytes,
            rest_api_timeout_s=settings.rest_api_timeout_s,
            graph_threads=settings.http_graph_threads,
            gzip_min_bytes=settings.rest_api_gzip_min_bytes,
            has_cors=settings.rest_api_enable_cors_support,
            cors_origins=settings.cors_origins,
            strict_json=settings.rest_api_strict_json,
            spans=self._tracing.http_spans if self._tracing else None,
            statusz=(access.server_wide(statusz.read) if access else statusz.read, page),
            directly=DirectHttp(engine, HTTP_API, strict_json=settings.rest_api_strict_json),
            callers=access.callers if access else None,
        )
        guard = self._connection_guard()
        protocol: Any = hot_protocol(http_app.state.hot_answers, guard)
        return HttpServer(
            uvicorn.Config(
                http_app,
                loop="none",
                http=protocol,
                timeout_keep_alive=settings.rest_api_keep_alive_s,  # type: ignore[arg-type]
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
            ),
            guard,
            opener("http", self._tls.http_handshakes(), self._crew),
        )

    def _connection_guard(self) -> ConnectionGuard:
        settings = self._settings
        return ConnectionGuard(
            ConnectionLimits(
                connections=max_connections(settings.max_connections),
                head_bytes=settings.rest_api_max_head_bytes,
                body_bytes=settings.max_request_bytes,
                head_timeout_s=settings.rest_api_head_timeout_s,
                stall_timeout_s=settings.rest_api_stall_timeout_s,
            ),
            self._engine.admission,
            self._metrics.admission.connection_dropped,
        )

    def _admin_server(self) -> AdminServer | None:
        settings, crew = self._settings, self._crew
        if settings.admin_port < 0:
            return None
        return AdminServer(
            self._engine,
            self._access,
            listener=crew.admin_listener
            if crew and crew.admin_listener
            else _listen(settings.admin_host, settings.admin_port, "--admin_port or --admin_host"),
            render=self._render,
            reload_config=self._reload_config,
            guard=self._connection_guard(),
            open_listener=opener("http", self._tls.http_handshakes(), None),
            max_body_bytes=settings.max_request_bytes,
            drain_timeout_s=settings.drain_timeout_s,
        )

    def _reload_config(self, engine: Engine, text: str | None) -> list[str]:
        """Takes a list of models by an engine that knows who asks for it; see create_admin_app."""
        if text is not None:
            models = parse_config_text(text, "The body") or ()
            engine.reload(models)
        elif self._config_file is None:
            raise ConfigConflict("There is no --model_config_file to be read; send a list of models.")
        else:
            models = self._config_file.reload_now(engine.reload)
        return sorted(model.name for model in models)

    def _render(self) -> tuple[bytes, str]:
        return self._crew.render() if self._crew else self._metrics.render()

    def _statusz(self) -> Statusz:
        return Statusz(
            installed_version(),
            self._settings,
            self._registry,
            self._recent,
            lambda: self._metrics.requests.read()[0],
            workers=self._crew.workers if self._crew else tuple,
            place=self._crew.place if self._crew else None,
            logs=self._request_logs.read,
        )

    def _metrics_paths(self) -> tuple[str, ...]:
        file = self._settings.monitoring_config_file
        try:
            return metrics_paths(read_monitoring_config(Path(file)) if file else None)
        except ServiceError as error:
            raise StartError(f"--monitoring_config_file={file}: {error.message}") from error

    def _handle_signals(self, stop: asyncio.Event, http: HttpServer) -> None:
        def on_signal(number: int) -> None:
            name = signal.Signals(number).name
            if stop.is_set():
                logger.warning("second signal: not waiting for requests in flight", extra={"signal": name})
                self._is_forced = True
                http.force_exit = True
                self._grpc.stop(0)
                return
            logger.info("draining", extra={"signal": name})
            stop.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)

    async def _shut_down(self, http: HttpServer, serving: asyncio.Task[None]) -> None:
        settings = self._settings
        self._registry.drain()
        self._models.drain()
        if self._verification is not None:
            self._verification.stop()
        self._grpc.set_serving(False)
        await asyncio.sleep(settings.shutdown_delay_s)
        http.should_exit = True
        await asyncio.gather(serving, asyncio.to_thread(self._grpc.stop, settings.drain_timeout_s))
        self._stop_watching.set()
        await asyncio.to_thread(self._request_logs.stop)
        self._follower.stop()
        if self._crew is not None:
            self._crew.leave()
        logger.info("stopped")

    async def _stop_models(self) -> list[str]:
        end_s = time.monotonic() + self._settings.drain_timeout_s
        while True:
            loading = await asyncio.to_thread(self._models.stop, 0.1)
            if not loading or self._is_forced or time.monotonic() >= end_s:
                return loading

    def _version_changed(self, model: str, status: VersionStatus) -> None:
        self._metrics.version_changed(model, status)
        self._show_health()
        extra = {"model": model, "version": status.version, "state": status.state.name}
        level = logging.INFO if status.state in (State.AVAILABLE, State.END) else logging.DEBUG
        logger.log(level, "version state", extra=extra)

    def _show_health(self) -> None:
        self._grpc.set_serving(self._registry.is_ready)


def _admission(settings: Settings, metrics: Metrics) -> Admission:
    limits = Limits(
        bytes=settings.max_bytes_in_flight,
        rows=settings.max_rows_in_flight,
        queued=settings.max_queued_requests,
        wait_s=settings.max_queue_ms / 1e3,
    )
    return Admission(limits, metrics.admission)


def _start_tracing(settings: Settings, crew: Crew | None) -> OtelTracing | None:
    try:
        return start_tracing(settings, crew.place if crew else None)
    except TracingUnavailable as error:
        raise StartError(str(error)) from error


def _create_batching(settings: Settings, metrics: Metrics) -> GraphBatching | None:
    if not settings.enable_batching:
        if settings.batching_parameters_file:
            raise StartError("--batching_parameters_file is set without setting --enable_batching to true.")
        return None
    try:
        return create_batching(
            settings.batching_parameters_file,
            settings.enable_per_model_batching_parameters,
            num_processors=settings.graph_threads,
            observer=metrics.batches,
            clock=time.monotonic,
        )
    except InvalidRequest as error:
        raise StartError(f"--batching_parameters_file={settings.batching_parameters_file}: {error.message}") from error


def _listen(host: str, port: int, flags: str = "--rest_api_port or --host") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port} for HTTP: {error.strerror}. Choose another with {flags}."
        ) from error
