"""Declares the settings of limits, HTTP, gRPC, shutdown and logs.

A flag of TensorFlow Serving keeps its meaning here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from service.configuration.server_settings import ServerSettings
from service.configuration.setting_fields import setting

# Channel argument of gRPC that the native core follows -> the setting that the core has for it.
CORE_CHANNEL_ARGUMENTS: Mapping[str, str] = {
    "grpc.max_receive_message_length": "max_message_bytes",
    "grpc.max_connection_idle_ms": "grpc_idle_s",
}
# The largest int32 means no limit, as in gRPC.
_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ListenerSettings(ServerSettings):
    """The base class with the settings of requests and answers; only its subclass Settings is instantiated."""

    grpc_max_threads: int = setting(8, "gRPC requests handled at the same time in Python.", 1, 1024)
    max_request_bytes: int = setting(
        64 << 20, "Largest request body (HTTP, also after decompression) or message (gRPC), in bytes.", 1024, 2**31 - 1
    )
    max_response_bytes: int = setting(
        256 << 20, "Largest answer, in bytes as arrays (JSON is several times as long).", 1024, 2**31 - 1
    )
    max_bytes_in_flight: int = setting(
        1 << 30,
        "Largest number of bytes of requests and answers, as arrays, in flight at a time; further requests are refused "
        "as overload.",
        1024,
        1 << 62,
    )
    max_queued_requests: int = setting(1024, "Requests that may wait for a thread, on each wire.", 0, 1_000_000)
    max_long_calls: int = setting(
        8192, "gRPC calls without end, such as health watches, of all clients; one address has a tenth.", 1, 1_000_000
    )
    max_queue_ms: int = setting(
        500,
        "Milliseconds that a request may wait for a thread; one that is expected to wait longer is refused at once.",
        1,
        3_600_000,
    )
    max_connections: int = setting(
        0,
        "Most HTTP connections, and with the native core most gRPC connections; beyond it, the longest idle ones are "
        "closed. 0: half of the file descriptors that the system allows.",
        0,
        1_000_000,
    )
    rest_api_max_head_bytes: int = setting(
        65536, "Largest request line with headers (HTTP), in bytes; only with the native core.", 1024, 1 << 24
    )
    rest_api_head_timeout_s: float = setting(
        10.0,
        "Seconds within which a client must send a request's line and headers, from its connection on; only with the "
        "native core.",
        0.1,
        3600,
    )
    rest_api_stall_timeout_s: float = setting(
        20.0,
        "Seconds within which a client must send 1 KB of a request's body, or read 1 KB of an answer, for each second; "
        "on both wires, only with the native core.",
        0.1,
        3600,
    )
    rest_api_keep_alive_s: float = setting(
        620.0,
        "Seconds for which an HTTP connection without requests stays open; set it longer than the idle time of your "
        "load balancer (nginx and AWS 60 s, Google Cloud 600 s).",
        0.1,
        86400,
    )
    rest_api_timeout_in_ms: int = setting(
        30_000, "Milliseconds after which an HTTP request is answered with an error.", 1, 3_600_000
    )
    rest_api_enable_cors_support: bool = setting(False, "Whether web pages of any origin may call the HTTP API.")
    rest_api_cors_origins: str = setting(
        "",
        "Comma-separated origins, such as https://app.example, whose web pages may call the HTTP API, in place of all.",
    )
    rest_api_strict_json: bool = setting(
        False,
        "Whether HTTP uses plain JSON only: NaN and Infinity are refused in bodies, and written as null in answers.",
    )
    rest_api_gzip_min_bytes: int = setting(
        32768,
        "Size from which HTTP answers are compressed for clients that accept it; 0: only if a client refuses others.",
        0,
        2**31 - 1,
    )
    grpc_socket_path: str = setting("", "Unix socket to serve gRPC on, beside the port.")
    grpc_channel_arguments: str = setting(
        "",
        "Comma-separated channel arguments of gRPC, such as grpc.max_receive_message_length=1000000; the native core "
        "follows a few, see docs/wire.md, and a warning names the others.",
    )
    enable_serialization_as_tensor_content: bool = setting(
        False, "Whether answers to Predict over gRPC have tensor_content in place of the *_val fields."
    )
    shutdown_delay_s: float = setting(
        0.0,
        "Seconds at shutdown between failing readiness on every wire and closing ports, for load balancers to notice.",
        0,
        3600,
    )
    keep_freed_mib: int = setting(
        64,
        "MiB of freed memory that malloc keeps for the next answers, in each of two arenas; 0: malloc's default. It "
        "is returned to the system after many connections have closed.",
        0,
        1024,
    )
    drain_timeout_s: float = setting(30.0, "Seconds that requests in flight get to finish at shutdown.", 0, 3600)
    request_log_root: str = setting(
        "",
        "Folder below which reload requests without the right 'admin' may write request logs, and remove old ones. "
        "Without it, such a request can not start a request log; see docs/security.md.",
    )
    request_log_file_mib: int = setting(
        64,
        "Size of a request log file in MiB, beyond which the next file is begun; logging_config starts a request log.",
        1,
        4096,
    )
    request_log_files: int = setting(
        16, "Number of files of a request log that are kept; the oldest are removed.", 1, 100_000
    )
    request_log_answers: bool = setting(True, "Whether a request log contains answers beside the requests.")
    slow_request_ms: float = setting(
        1000.0,
        "Milliseconds after which a request is logged, and shown at /v1/statusz, as slow; 0: no request is.",
        0,
        3.6e6,
    )
    tracing: Literal["off", "otlp"] = setting(
        "off",
        "Whether requests and loads are traced, and their spans sent by OTLP (extra [otel]). OpenTelemetry's own "
        "variables set the address and the sampler: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER and others.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severe messages to log.")
    log_format: Literal["auto", "text", "json"] = setting(
        "auto", "Form of log lines: text for people or JSON for machines; 'auto' is text on a terminal, else JSON."
    )

    @property
    def rest_api_timeout_s(self) -> float:
        """Longest time, in seconds, that an HTTP request may take until its answer; then it gets an error."""
        return self.rest_api_timeout_in_ms / 1e3

    @property
    def slow_request_s(self) -> float:
        """Least duration, in seconds, of a request that is logged as slow; infinity: no request is logged as slow."""
        return self.slow_request_ms / 1e3 or math.inf

    @property
    def channel_arguments(self) -> list[tuple[str, int | str]]:
        """The values of --grpc_channel_arguments as (name, value) pairs; whole numbers are int."""
        pairs = [pair.partition("=") for pair in self.grpc_channel_arguments.split(",") if pair]
        return [(name, int(value) if _is_int32(value) else value) for name, _, value in pairs]

    @property
    def max_message_bytes(self) -> int:
        """Largest message over gRPC, in bytes: by a channel argument, else max_request_bytes."""
        return self._channel_limit("grpc.max_receive_message_length", self.max_request_bytes)

    @property
    def grpc_idle_s(self) -> float | None:
        """Seconds after which a gRPC connection without calls is closed, by a channel argument; None: never."""
        limit_ms = self._channel_limit("grpc.max_connection_idle_ms", _NO_LIMIT)
        return None if limit_ms == _NO_LIMIT else limit_ms / 1e3

    def _channel_limit(self, name: str, default: int) -> int:
        value = dict(self.channel_arguments).get(name, default)
        return value if isinstance(value, int) and 0 <= value < _NO_LIMIT else default

    @property
    def idle_channel_arguments(self) -> list[str]:
        """The names in --grpc_channel_arguments that have no effect on the native core."""
        return [name for name, _ in self.channel_arguments if name not in CORE_CHANNEL_ARGUMENTS]

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """The origins (scheme, host and port) whose web pages may call the HTTP API by CORS."""
        return tuple(origin.strip() for origin in self.rest_api_cors_origins.split(",") if origin.strip())


def _is_int32(text: str) -> bool:
    try:
        return -(2**31) <= int(text) < 2**31
    except ValueError:
        return False
