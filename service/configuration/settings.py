"""Declares all settings, those of limits, HTTP, gRPC, shutdown and logs here, and the error that stops the start.

A flag of TensorFlow Serving keeps its meaning here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from service.configuration.control_groups import memory_limit_bytes
from service.configuration.server_settings import MAX_INT, ServerSettings, setting

# The channel arguments of gRPC that the native core follows.
CORE_CHANNEL_ARGUMENTS = (
    "grpc.max_receive_message_length",
    "grpc.max_connection_idle_ms",
    "grpc.max_connection_age_ms",
    "grpc.max_connection_age_grace_ms",
)


def _is_int32(text: str) -> bool:
    try:
        return -(2**31) <= int(text) < 2**31
    except ValueError:
        return False


ENV_PREFIX = "EMB_"
# Name of a section's first setting -> title of the section, in `--help` and in docs/settings.md.
SECTIONS: Mapping[str, str] = {
    "models": "Models",
    "auth_config": "Callers",
    "admin_port": "Addresses and certificates",
    "threads": "Threads of the native core",
    "file_system_poll_wait_seconds": "Loading of versions",
    "graph_signatures": "TensorFlow graphs",
    "enable_batching": "Batching of TensorFlow graphs",
    "grpc_max_threads": "Limits and overload",
    "rest_api_keep_alive_s": "HTTP",
    "grpc_socket_path": "gRPC",
    "shutdown_delay_s": "Shutdown and memory",
    "request_log_root": "Logs and traces",
    "store_cache_dir": "Object stores",
    "data_plane": "Data plane",
    "hot_rows": "Hot rows",
    "remote_tables": "Tables in clusters",
    "warm": "Tables in memory",
    "delta_poll_wait_seconds": "Changes of rows",
    "neighbors_threads": "Searches for nearest rows",
}
# The settings that most people need: `--help` shows these, and `--help=all` shows all.
COMMON = (
    *("model_name", "model_base_path", "model_config_file", "strict", "store_cache_dir"),
    *("host", "port", "rest_api_port", "ssl_config_file", "rest_api_ssl_config_file", "auth_config", "admin_port"),
    *("threads", "enable_batching", "log_format"),
)


@dataclass(frozen=True, slots=True)
class Settings(ServerSettings):
    """All settings of the server; each field can be set by a flag of its name or an environment variable EMB_<NAME>."""

    grpc_max_threads: int = setting(8, "gRPC requests handled at the same time in Python.", 1, MAX_INT)
    max_request_bytes: int = setting(
        64 << 20, "Largest request body (HTTP, also after decompression) or message (gRPC), in bytes.", 1024, 2**31 - 1
    )
    max_response_bytes: int = setting(
        256 << 20, "Largest answer, in bytes as arrays (JSON is several times as long).", 1024, 2**31 - 1
    )
    max_bytes_in_flight: int = setting(
        0,
        "Largest number of bytes of requests and answers, as arrays, in flight at a time; further requests are refused "
        "as overload. 0: 1 GiB, or a quarter of the memory limit of the machine or control group if that is less.",
        0,
        1 << 62,
    )
    max_queued_requests: int = setting(
        1024, "Requests that may wait for a thread, of HTTP and of gRPC each.", 0, 1_000_000
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
    stall_timeout_s: float = setting(
        20.0,
        "Seconds within which a client must complete the TLS handshake, send a request's line and headers, and send "
        "1 KB of a body, or read 1 KB of an answer, for each second; only with the native core.",
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
        30_000,
        "Milliseconds after which an HTTP request is answered with an error; 0 or less: no limit.",
        -MAX_INT,
        MAX_INT,
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
        "Seconds at shutdown between failing readiness and closing ports, for load balancers to notice.",
        0,
        3600,
    )
    drain_timeout_s: float = setting(30.0, "Seconds that requests in flight get to finish at shutdown.", 0, 3600)
    request_log_root: str = setting(
        "",
        "Folder below which reload requests without the right 'admin' may write request logs, and remove old ones. "
        "Without it, such a request can not start a request log; see docs/security.md.",
    )
    request_log_mib: int = setting(
        1024,
        "Largest size of a request log in MiB; its oldest files are removed. logging_config starts a request log.",
        16,
        1 << 20,
    )
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
    store_cache_dir: str = setting(
        "",
        "Folder to which versions in object stores are fetched (extra [stores]), and from which they are mapped; of "
        "this server alone. Without one base paths are folders.",
    )
    store_cache_mib: int = setting(
        0,
        "MiB of versions that this folder may hold; 0: as many as its disk has. A swap needs room for both.",
        0,
        1 << 40,
    )
    store_poll_wait_seconds: float = setting(
        60.0, "Seconds between listings of a model's versions in an object store, give or take a fifth.", 0.01, 86400
    )
    data_plane: Literal["auto", "core", "reference"] = setting(
        "auto",
        "The server that answers requests: 'core' is the compiled core, with many threads; 'reference' is a small "
        "server in Python with the same answers, many times slower and without most settings, see "
        "docs/reference-server.md; 'auto' is the core if it is installed.",
    )
    warm: Literal["off", "hot_rows", "tables"] = setting(
        "off",
        "What is read into memory before a version is AVAILABLE: 'hot_rows', which its training looked up most, or its "
        "whole 'tables'.",
    )
    hot_rows: bool = setting(
        True,
        "Whether the native core samples the ids of lookups, to find the hot rows of each table; see docs/hot-rows.md.",
    )
    hot_rows_dir: str = setting(
        "",
        "Folder to which the hot rows of each version are written every minute. A version that is loaded reads its "
        "own or an older file, so that these rows are in memory.",
    )
    remote_tables: str = setting(
        "",
        "Tables that are read from Valkey or Redis clusters and not mapped, separated by semicolons: "
        "TABLE=valkey://HOST:PORT,...?OPTION=VALUE or MODEL/TABLE=...; see docs/scaling.md. `model-export push` writes "
        "the tables to a cluster.",
    )
    remote_cache_bytes: int = setting(
        0,
        "Most bytes of rows of remote tables that the native core caches, those that are read most; 0: no cache. "
        "Before a version is AVAILABLE, the server reads its hot rows into the cache, for 10 seconds at most.",
        0,
        1 << 44,
    )
    paged_tables: Literal["auto", "on", "off"] = setting(
        "auto",
        "How pages of mapped tables are read. 'auto': the native core reads the pages that a lookup needs, so that "
        "other lookups do not wait; meanwhile it reads all other pages, or drops those that are used least if the "
        "tables do not fit into --paged_tables_mib; see docs/scaling.md. 'on': no table fits. 'off': the kernel reads "
        "pages.",
    )
    paged_tables_mib: int = setting(
        0,
        "Most MiB of paged tables in memory; 0: 70 % of the memory limit of the machine or control group.",
        0,
        1 << 30,
    )
    table_lock: Literal["off", "try", "require"] = setting(
        "off",
        "Whether tables are locked in memory: if the system does not allow it, 'try' logs a warning, and 'require' "
        "fails the load.",
    )
    verify_tables: Literal["auto", "background", "before_available", "off"] = setting(
        "auto",
        "When tables are compared with the checksums in their checkpoint's index: 'before_available'; in the "
        "'background' beside the first answers; or 'auto': before if another version answers meanwhile, else in the "
        "background. A version with a wrong checksum is not loaded, or is unloaded.",
    )
    verify_tables_mib_per_s: float = setting(
        512.0, "Most MiB of tables that are verified per second; 0: no limit.", 0, 1_000_000
    )
    table_pages: Literal["auto", "normal", "random", "huge"] = setting(
        "auto",
        "Pages of the mapped tables: 'auto' turns pages in memory into huge pages where that is cheap, beside the "
        "first answers, or before AVAILABLE if another version answers meanwhile (30 s at most); 'huge' turns all "
        "pages into huge pages before AVAILABLE; 'normal' changes nothing; 'random' turns reading ahead off.",
    )
    delta_poll_wait_seconds: float = setting(
        0.2,
        "Seconds between scans for deltas, which change rows without a new version; 0: deltas are not applied.",
        0,
        3600,
    )
    delta_journal_dir: str = setting(
        "", "Folder of the journals that keep upserts over a restart; without it upserts are refused."
    )
    delta_journal_max_mib: int = setting(
        1024, "Largest journal of a version, in MiB; the largest delta file has a quarter of them.", 4, 8188
    )
    neighbors_threads: int = setting(
        1,
        "Searches for nearest rows that run at a time, at low priority, and threads of a search that runs alone.",
        1,
        1024,
    )
    neighbors_index_rows: int = setting(
        100_000,
        "After the first search, the server builds an index for a table of at least this many rows; 0: for none.",
        0,
        2**62,
    )
    neighbors_index_dir: str = setting(
        "",
        "Folder that keeps the indexes of tables over a restart; without it, the server builds each index anew.",
    )

    @property
    def rest_api_timeout_s(self) -> float:
        # Without a limit, the longest time that the flag can name: 24 days.
        return (self.rest_api_timeout_in_ms if self.rest_api_timeout_in_ms > 0 else MAX_INT) / 1e3

    @property
    def slow_request_s(self) -> float:
        """Least duration, in seconds, of a request that is logged as slow; infinity: no request is logged as slow."""
        return self.slow_request_ms / 1e3 or math.inf

    @property
    def bytes_in_flight(self) -> int:
        """Largest number of bytes in flight; a request of the largest size always fits."""
        limit = memory_limit_bytes()
        usual = 1 << 30 if limit is None else min(1 << 30, limit // 4)
        return self.max_bytes_in_flight or max(usual, self.max_request_bytes)

    @property
    def channel_arguments(self) -> list[tuple[str, int | str]]:
        pairs = [pair.partition("=") for pair in self.grpc_channel_arguments.split(",") if pair]
        return [(name, int(value) if _is_int32(value) else value) for name, _, value in pairs]

    @property
    def max_message_bytes(self) -> int:
        """Largest message over gRPC, in bytes: by a channel argument, else max_request_bytes."""
        return self._channel_limit("grpc.max_receive_message_length", self.max_request_bytes)

    def channel_seconds(self, name: str) -> float | None:
        """Returns a channel argument in milliseconds as seconds; None: it is not given, or means no limit."""
        limit_ms = self._channel_limit(name, MAX_INT)
        return None if limit_ms == MAX_INT else limit_ms / 1e3

    def _channel_limit(self, name: str, default: int) -> int:
        value = dict(self.channel_arguments).get(name)
        if not isinstance(value, int):
            return default
        return value if value >= 0 else MAX_INT

    @property
    def idle_channel_arguments(self) -> list[str]:
        return [name for name, _ in self.channel_arguments if name not in CORE_CHANNEL_ARGUMENTS]

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """The origins (scheme, host and port) whose web pages may call the HTTP API by CORS."""
        return tuple(origin.strip() for origin in self.rest_api_cors_origins.split(",") if origin.strip())


class StartError(Exception):
    """The error that stops the server's start; the message says what the user shall change."""
