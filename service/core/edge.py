"""Starts the native core on the public ports, keeps its certificates and routes up to date, and takes its samples.

The native core gets the sampling rates of OpenTelemetry's sampler, and tells Python of sampled requests.

Source: opentelemetry.io/docs/specs/otel/trace/sdk, the descriptions of the built-in samplers.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from service import _native
from service.access.callers import Caller, Callers
from service.access.tls import Wires
from service.configuration.settings import Settings, StartError
from service.control.request_context import Recorder, Tracing
from service.core.native_servable import RoutePublisher
from service.errors import InvalidRequest
from service.observe.metric_text import EXAMPLES, QUEUE, REQUEST
from service.wire.config_protos import SslConfig

logger = logging.getLogger(__name__)

_LEAF = r"AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased\{[^{}]*\}"
_PARENT_BASED = re.compile(
    rf"ParentBased\{{root:({_LEAF}),remoteParentSampled:({_LEAF}),remoteParentNotSampled:({_LEAF}),local.*\}}"
)
_NAMES = ("root", "sampled_parent", "unsampled_parent")


def trace_shares(description: str) -> dict[str, float]:
    """Returns the sampling rates in an OpenTelemetry sampler's description, named like the fields of Tracing in
    native/src/edge/sampling.rs.

    For a sampler that the core does not know all rates are 1: the core tells Python of all requests, and the sampler
    decides.

    >>> trace_shares("TraceIdRatioBased{0.25}")
    {'root': 0.25, 'sampled_parent': 0.25, 'unsampled_parent': 0.25}
    """
    if found := _PARENT_BASED.fullmatch(description):
        return dict(zip(_NAMES, map(_share, found.groups()), strict=True))
    if re.fullmatch(_LEAF, description):
        return dict.fromkeys(_NAMES, _share(description))
    extra = {"sampler": description}
    logger.warning("the native core does not know the sampler: it records the spans of all requests", extra=extra)
    return dict.fromkeys(_NAMES, 1.0)


def _share(leaf: str) -> float:
    if leaf.startswith("TraceIdRatioBased"):
        return float(leaf.partition("{")[2].rstrip("}"))
    return float(leaf == "AlwaysOnSampler")


# Type of the native core's listeners: "http" or "grpc" -> bound sockets, and paths of Unix sockets.
Listeners = Mapping[str, Sequence[socket.socket | Path]]
# Type of the records of sampled requests: entries for request logs (model, version, signature, second since 1970, a
# PredictionLog without its metadata), the spans as JSON, how many entries were dropped, by model, how many spans, and
# the models of which a request found a file damaged.
Records = tuple[list[tuple[str, int, str, int, bytes]], str, dict[str, int], int, list[str]]


class Edge:
    """The native core that serves in this process. Concurrency: any thread; stop once.

    server: the core itself; native/src/python.rs documents its methods.

    Args:
      listeners: bound sockets by wire; the core takes them over.
      upstreams: names of the Unix sockets on which the control servers listen, by wire.
      callers: the callers that may send requests; None: everybody may.
      sampler: description of OpenTelemetry's sampler; None: nothing is traced.
      seal: proves to the control servers that the core has forwarded a request.

    Raises:
      StartError: the core can not use a certificate, or not listen.
    """

    def __init__(
        self,
        settings: Settings,
        routes: RoutePublisher,
        tls: Wires,
        *,
        listeners: Listeners,
        upstreams: Mapping[str, str],
        max_connections: int,
        max_table_rows: int,
        callers: Callers | None,
        sampler: str | None,
        seal: str,
    ) -> None:
        files = {wire: file for wire, file in (("grpc", tls.grpc), ("http", tls.http)) if file is not None}
        edge = edge_config(settings, max_connections)
        edge |= {f"{wire}_upstream": name for wire, name in upstreams.items()}
        edge |= {"seal": seal, "tracing": None if sampler is None else trace_shares(sampler)}
        config: dict[str, Any] = {"edge": edge, "max_table_rows": max_table_rows}
        config |= {wire: [_listener(one) for one in listeners[wire]] for wire in listeners}
        # The callers are part of the configuration with which the ports open, so that no request is answered without a
        # check of its caller.
        config["access"] = None if callers is None else describe_callers(callers.listed, callers.sessions)
        # TLS is part of the configuration with which the ports open, so that no connection starts in plaintext.
        config["tls"] = {wire: _pem(file.config()) for wire, file in files.items()}
        try:
            self.server = _native.Server(json.dumps(config))
        except (ValueError, OSError) as error:
            raise StartError(f"the native core can not start: {error}") from error
        for wire, file in files.items():
            file.on_change = self._certificate_changed(wire)
        if callers is not None:
            known = callers
            callers.on_change = lambda: self.server.set_access(
                json.dumps(describe_callers(known.listed, known.sessions))
            )
        self._routes = routes
        routes.attach(self.server)

    def close(self) -> None:
        self.server.close()
        self._routes.detach()

    def _certificate_changed(self, wire: str) -> Callable[[SslConfig], None]:
        def changed(config: SslConfig) -> None:
            authorities = config.custom_ca.encode() if config.client_verify else None
            certificate, key = config.server_cert.encode(), config.server_key.encode()
            try:
                self.server.set_tls(wire, certificate, key, authorities, config.client_verify)
            except ValueError as error:
                raise InvalidRequest(f"the native core can not use it: {error}") from error

        return changed


def edge_config(settings: Settings, max_connections: int) -> dict[str, Any]:
    """Returns the native core's configuration, with the fields of edge/config.rs and admission/limits.rs; times are in
    seconds.
    """
    cors = "all" if settings.rest_api_enable_cors_support else "off"
    slow = {"slow_from": settings.slow_request_ms / 1e3} if settings.slow_request_ms else {}
    return {
        "threads": settings.num_threads,
        "large_threads": settings.num_threads,
        "as_content": settings.enable_serialization_as_tensor_content,
        "strict_json": settings.rest_api_strict_json,
        "cors": {"listed": settings.cors_origins} if settings.cors_origins else cors,
        "bucket_limits_s": REQUEST.limits_s,
        "wait_limits_s": QUEUE.limits_s,
        "example_limits": [int(limit) for limit in EXAMPLES],
        **slow,
        "limits": {
            "max_request_bytes": settings.max_request_bytes,
            "max_message_bytes": settings.max_message_bytes,
            "max_response_bytes": settings.max_response_bytes,
            "gzip_min_bytes": settings.rest_api_gzip_min_bytes,
            "max_bytes_in_flight": settings.bytes_in_flight,
            "max_connections": max_connections,
            "max_queued_requests": settings.max_queued_requests,
            "max_queue": settings.max_queue_ms / 1e3,
            # The native core forwards at most twice as many requests as Python runs at a time, so that Python never has
            # to wait for its next request.
            "max_forwarded": 2 * settings.neighbors_threads,
            "handshake_timeout": settings.stall_timeout_s,
            "head_timeout": settings.stall_timeout_s,
            "stall_timeout": settings.stall_timeout_s,
            "keep_alive": settings.rest_api_keep_alive_s,
            "http_timeout": settings.rest_api_timeout_s,
            "grpc_keep_alive": settings.channel_seconds("grpc.max_connection_idle_ms"),
            "max_age": settings.channel_seconds("grpc.max_connection_age_ms"),
            "max_age_grace": settings.channel_seconds("grpc.max_connection_age_grace_ms"),
        },
    }


def _listener(one: socket.socket | Path) -> dict[str, Any]:
    return {"path": str(one)} if isinstance(one, Path) else {"fd": one.detach()}


def _pem(config: SslConfig) -> dict[str, str | None]:
    return {
        "certificates": config.server_cert,
        "key": config.server_key,
        "authorities": config.custom_ca if config.client_verify else None,
    }


def describe_callers(
    callers: Sequence[Caller], sessions: Mapping[bytes, tuple[bytes, float]] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Describes the callers for the native core: each with its credentials, the models on which it has the right
    "predict", and those on which it has any right. sessions: as in Callers; each is one more credential of its caller.

    >>> from service.access.callers import Rule
    >>> rules = (Rule(("films", "news-*"), frozenset({"predict"})), Rule(("*",), frozenset({"metadata"})))
    >>> described = describe_callers([Caller("ranker", rules, certificates=("CN:ranker",))])[0]
    >>> described["name"], described["certificates"], described["models"], described["seen"]
    ('ranker', ['CN:ranker'], ['films', 'news-*'], ['films', 'news-*', '*'])
    """
    return [
        {
            "name": caller.name,
            "digests": [
                digest.hex()
                for digest in (*caller.digests, *(one for one, (of, _) in sessions.items() if of in caller.digests))
            ],
            "certificates": list(caller.certificates),
            "models": [model for rule in caller.rules if "predict" in rule.rights for model in rule.models],
            "seen": [model for rule in caller.rules if rule.rights for model in rule.models],
        }
        for caller in callers
    ]


_WAIT_S = 10.0
_STOP_S = 5.0


class SampledRequests:
    """The thread that takes the native core's records. Concurrency: any thread; call start() and stop() once each.

    dropped_spans: number of requests for traces that the core has dropped.

    Args:
      on_damage: called with a model's name when a request found the model's files damaged.
    """

    def __init__(
        self, recorders: Mapping[str, Recorder], tracing: Tracing | None, on_damage: Callable[[str], None]
    ) -> None:
        self._on_damage = on_damage
        self._recorders = recorders
        self._tracing = tracing
        self.dropped_spans = 0
        self._thread: threading.Thread | None = None

    def start(self, edge: Edge) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(edge.server.take_records,), name="native-records", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Waits until the records of the last requests are taken, a few seconds at most; the core must be closed."""
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def _run(self, take: Callable[[float], Records | None]) -> None:
        while (taken := take(_WAIT_S)) is not None:
            try:
                self._pass_on(taken)
            except Exception:
                # One bad batch must not end the thread, because records of later requests would be lost silently.
                logger.exception("records of sampled requests could not be passed on")

    def _pass_on(self, taken: Records) -> None:
        entries, spans, dropped, dropped_spans, damaged = taken
        for model in damaged:
            self._on_damage(model)
        self.dropped_spans += dropped_spans
        for model, version, signature_name, answered_s, log in entries:
            # A log may have ended since the core answered the request.
            if (recorder := self._recorders.get(model)) is not None:
                recorder.answered(version, signature_name, answered_s, log)
        for model, count in dropped.items():
            if (recorder := self._recorders.get(model)) is not None:
                recorder.note_dropped(count)
        if self._tracing is not None and spans != "[]":
            self._tracing.answered(json.loads(spans))
