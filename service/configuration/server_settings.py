"""Settings of the server itself: models, wires, limits, logs. Names that TensorFlow Serving has mean the same here."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

from service.configuration.setting_fields import setting


def _num_processors() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """See Settings, which these are part of."""

    model_base_path: str = setting(
        "",
        "Folder of the model, with one sub-folder per version named by an integer; not used with a model_config_file.",
    )
    model_name: str = setting("default", "Name under which the model is served; not used with a model_config_file.")
    model_config_file: str = setting(
        "", "File that lists the models: the text form of TensorFlow Serving's ModelServerConfig."
    )
    model_config_file_poll_wait_seconds: float = setting(
        0.0, "Seconds between looks at that file; 0 reads it once, at the start.", 0, 86400
    )
    strict: bool = setting(
        False,
        "Whether a model whose base path has no version to load ends the start with exit status 1. Without it the "
        "server waits for the version, as TensorFlow Serving does.",
    )
    model_reload_timeout_s: float = setting(
        300.0, "Seconds that a new list of models, by file or by request, gets until its new models answer.", 0, 86400
    )
    allow_version_labels_for_unavailable_models: bool = setting(
        False, "Whether a version label that is new may point to a version that is not AVAILABLE."
    )
    monitoring_config_file: str = setting(
        "",
        "File that says where metrics are to be had: the text form of TensorFlow Serving's MonitoringConfig. Without "
        "one they are at /metrics and /monitoring/prometheus/metrics.",
    )
    auth_config: str = setting(
        "", "TOML file that says who may do what with which models; see docs/security.md. Without one everybody may."
    )
    auth_config_poll_wait_seconds: float = setting(
        1.0, "Seconds between looks at that file and those of tokens; 0 reads them once, at the start.", 0, 86400
    )
    admin_port: int = setting(
        -1, "HTTP port of the admin routes, which change the server; 0 picks a free one, -1: there are none.", -1, 65535
    )
    admin_host: str = setting(
        "127.0.0.1", "Address to listen on for them; one that others can reach needs an auth_config."
    )
    ssl_config_file: str = setting(
        "",
        "File with the gRPC port's key and certificate, and the authorities of its clients: the text form of "
        "TensorFlow Serving's SSLConfig, read again when it changes. Without one gRPC is plaintext.",
    )
    rest_api_ssl_config_file: str = setting(
        "", "The same for the HTTP port; it may be the same file. Without one HTTP is plaintext."
    )
    tls_handshake_timeout_s: float = setting(
        10.0, "Seconds in which a client must have secured its connection.", 0.1, 600
    )
    host: str = setting("0.0.0.0", "Address to listen on, for HTTP and gRPC.")
    port: int = setting(8500, "gRPC port; 0 picks a free one.", 0, 65535)
    rest_api_port: int = setting(8501, "HTTP port; 0 picks a free one.", 0, 65535)
    threads: str = setting(
        "auto",
        "Threads of the native core that serve connections; 'auto' is one for each processor. Python has one event "
        "loop for HTTP, and grpc_max_threads.",
    )
    workers: str = setting("", "The same as threads, which it was called once; not used with threads.")
    file_system_poll_wait_seconds: float = setting(
        1.0, "Seconds between looks for new versions; 0 looks once, at the start.", 0, 86400
    )
    num_load_threads: int = setting(
        0, "How many versions may load at the same time, all models together; 0: one of each model.", 0, 1024
    )
    max_num_load_retries: int = setting(5, "How often a version that failed to load is tried again.", 0, 1000)
    load_retry_interval_micros: int = setting(
        60_000_000, "Microseconds between those tries; less than 0 is 0.", -(10**12), 10**12
    )
    load_timeout_s: float = setting(
        3600.0,
        "Seconds after which a version's load is given up, so that the model's other versions can be loaded; 0: "
        "never. The version is END with DEADLINE_EXCEEDED, and is tried again once that load has ended.",
        0,
        604800,
    )
    first_loads_timeout_s: float = setting(
        20.0,
        "Seconds that the ports stay closed at most, until each model of the start has loaded, has failed, or answers "
        "its lookups; 0: they open at once.",
        0,
        604800,
    )
    early_lookups: bool = setting(
        True,
        "Whether a version's lookups are answered while it is LOADING, before its graphs are open, if its model has no "
        "version AVAILABLE. Predicts are refused as UNAVAILABLE until then.",
    )
    version_settle_s: float = setting(
        1.0,
        "Seconds for which a version's folder must not have changed before it is loaded, unless its manifest shows "
        "that all of it is there.",
        0,
        3600,
    )
    enable_model_warmup: bool = setting(
        True, "Whether assets.extra/tf_serving_warmup_requests is replayed before a version is AVAILABLE."
    )
    num_request_iterations_for_warmup: int = setting(
        0, "How often each of its requests is run; 0 means once.", 0, 1_000_000
    )
    saved_model_tags: str = setting("serve", "Comma-separated tags of the MetaGraph to load.")
    graph_signatures: Literal["auto", "lazy", "off"] = setting(
        "auto",
        "Signatures that need TensorFlow: 'auto' loads their graph with the version where TensorFlow is installed, "
        "'lazy' at the first request for one, 'off' never.",
    )
    graph_threads: int = setting(
        _num_processors(),
        "TensorFlow threads, and graph runs at the same time over HTTP.",
        1,
        1024,
        default_about="number of processors",
    )
    graph_towers: bool = setting(
        True,
        "Whether a predict that looks up tables does so on the mapped ones and runs only the rest in TensorFlow, where "
        "its graph can be cut; else TensorFlow loads the tables and runs all of it.",
    )
    tower_batch_rows: int = setting(
        0,
        "Rows up to which requests that are there at the same time share a run of that rest, none waiting for others; "
        "0: each runs by itself, and is answered to the bit as it is alone. --enable_batching takes precedence.",
        0,
        1_000_000,
    )
    tensorflow_session_parallelism: int = setting(
        0, "TensorFlow threads, within an operation and of operations side by side; 0: graph_threads.", 0, 1024
    )
    tensorflow_intra_op_parallelism: int = setting(
        0, "TensorFlow threads within an operation; 0: chosen by TensorFlow where the next one is given.", 0, 1024
    )
    tensorflow_inter_op_parallelism: int = setting(
        0, "Operations that TensorFlow runs side by side; 0: chosen by it where the one before is given.", 0, 1024
    )
    enable_batching: bool = setting(False, "Whether requests that wait for the same graph are run together.")
    batching_parameters_file: str = setting(
        "", "File that says how: the text form of TensorFlow Serving's BatchingParameters; empty: its defaults."
    )
    enable_per_model_batching_parameters: bool = setting(
        False,
        "Whether batching goes by batching_params.pbtxt in each version's folder, and a version without one is not "
        "batched; only num_batch_threads and thread_pool_name are then read from that other file.",
    )
    lookup_threads: int = setting(
        1,
        "Threads that share the rows of one large lookup (512 KB of answer for each); more only help a server that has "
        "processors to spare.",
        1,
        64,
    )
    grpc_max_threads: int = setting(8, "gRPC requests handled at the same time in Python.", 1, 1024)
    max_request_bytes: int = setting(
        64 << 20, "Largest request body (HTTP, also after decompression) or message (gRPC), in bytes.", 1024, 2**31 - 1
    )
    max_response_bytes: int = setting(
        256 << 20, "Largest answer, in bytes as arrays (JSON is several times as long).", 1024, 2**31 - 1
    )
    max_bytes_in_flight: int = setting(
        1 << 30,
        "Bytes of requests and answers, as arrays, that are worked on at the same time; what is more is "
        "refused as overload.",
        1024,
        1 << 62,
    )
    max_rows_in_flight: int = setting(16_000_000, "Rows of requests that are worked on at the same time.", 1, 1 << 62)
    max_queued_requests: int = setting(1024, "Requests that may wait for a thread, on each wire.", 0, 1_000_000)
    max_queue_ms: int = setting(
        200,
        "Milliseconds that a request may wait for a thread; one that is expected to wait longer is refused at once.",
        1,
        3_600_000,
    )
    max_connections: int = setting(
        0,
        "HTTP connections, and gRPC's over the native core; 0: half of the file descriptors that the system allows.",
        0,
        1_000_000,
    )
    rest_api_max_head_bytes: int = setting(
        65536, "Largest request line with headers (HTTP), in bytes; by the native core.", 1024, 1 << 24
    )
    rest_api_head_timeout_s: float = setting(
        10.0,
        "Seconds that a client gets for a request's line and headers, from connecting at first; by the native core.",
        0.1,
        3600,
    )
    rest_api_stall_timeout_s: float = setting(
        20.0,
        "Seconds in which a client must send 1 KB of a request's body, or read 1 KB of an answer, for each second; on "
        "both wires, by the native core.",
        0.1,
        3600,
    )
    rest_api_keep_alive_s: float = setting(
        5.0, "Seconds for which an HTTP connection is kept that asks nothing.", 0.1, 86400
    )
    rest_api_timeout_in_ms: int = setting(30_000, "Milliseconds after which an HTTP request gives up.", 1, 3_600_000)
    rest_api_enable_cors_support: bool = setting(False, "Let web pages of any origin call the HTTP API.")
    rest_api_cors_origins: str = setting(
        "",
        "Comma-separated origins, such as https://app.example, whose web pages may call the HTTP API, in place of all.",
    )
    rest_api_strict_json: bool = setting(
        False, "Plain JSON only: bare NaN and Infinity are refused, and written as null."
    )
    rest_api_gzip_min_bytes: int = setting(
        32768, "Size from which HTTP answers are compressed for clients that accept gzip; 0 is never.", 0, 2**31 - 1
    )
    grpc_socket_path: str = setting("", "Unix socket to serve gRPC on, beside the port.")
    grpc_channel_arguments: str = setting(
        "", "Comma-separated settings of gRPC itself, such as grpc.max_connection_age_ms=2000."
    )
    enable_serialization_as_tensor_content: bool = setting(
        False, "Answer Predict over gRPC in tensor_content instead of the *_val fields."
    )
    shutdown_delay_s: float = setting(
        0.0, "Seconds between failing /readyz and no longer accepting, for load balancers to notice.", 0, 3600
    )
    keep_freed_mib: int = setting(
        64, "MiB of freed memory that malloc keeps for the next answers, in each of two arenas; 0: as it is.", 0, 1024
    )
    drain_timeout_s: float = setting(30.0, "Seconds that requests in flight get to finish at shutdown.", 0, 3600)
    request_log_file_mib: int = setting(
        64, "MiB of a file of a model's request log, see logging_config, beyond which the next is begun.", 1, 4096
    )
    request_log_files: int = setting(16, "Files of a request log that are kept; the oldest are removed.", 1, 100_000)
    request_log_answers: bool = setting(True, "Whether a request log holds answers beside the requests.")
    slow_request_ms: float = setting(
        1000.0,
        "Milliseconds from which on a request is logged, and shown at /v1/statusz, as slow; 0: none is.",
        0,
        3.6e6,
    )
    tracing: Literal["off", "otlp"] = setting(
        "off",
        "Whether requests and loads are traced and sent by OTLP (extra [otel]); where to and which is said by "
        "OpenTelemetry's own variables: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER and others.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severe messages to log.")
    log_format: Literal["auto", "text", "json"] = setting(
        "auto", "Lines for people or JSON for machines; 'auto' is text on a terminal, else JSON."
    )

    @property
    def num_threads(self) -> int:
        """Threads of the native core that serve connections; 0: the setting is no number."""
        text = self.workers or self.threads
        if text == "auto":
            return _num_processors()
        return int(text) if text.isascii() and text.isdigit() else 0

    @property
    def load_retry_interval_s(self) -> float:
        """Seconds between tries of a version that failed to load."""
        return max(self.load_retry_interval_micros, 0) / 1e6

    @property
    def parallelism(self) -> tuple[int, int]:
        """TensorFlow's threads within an operation, and its operations side by side; 0: TensorFlow chooses."""
        own = (self.tensorflow_intra_op_parallelism, self.tensorflow_inter_op_parallelism)
        both = self.tensorflow_session_parallelism or self.graph_threads
        return own if any(own) else (both, both)

    @property
    def warmup_iterations(self) -> int:
        """How often each recorded warm-up request is run."""
        return max(self.num_request_iterations_for_warmup, 1) if self.enable_model_warmup else 0

    @property
    def rest_api_timeout_s(self) -> float:
        """Seconds after which an HTTP request gives up."""
        return self.rest_api_timeout_in_ms / 1e3

    @property
    def slow_request_s(self) -> float:
        """Seconds from which on a request is slow; infinite: none is."""
        return self.slow_request_ms / 1e3 or math.inf

    @property
    def channel_arguments(self) -> list[tuple[str, int | str]]:
        """gRPC's own settings by name; whole numbers as numbers."""
        pairs = [pair.partition("=") for pair in self.grpc_channel_arguments.split(",") if pair]
        return [(name, int(value) if _is_int32(value) else value) for name, _, value in pairs]

    @property
    def http_graph_threads(self) -> int:
        """Graph runs at the same time over HTTP; a batch holds no more of its requests than can wait together."""
        return max(self.graph_threads, self.grpc_max_threads) if self.enable_batching else self.graph_threads

    @property
    def tags(self) -> frozenset[str]:
        """The MetaGraph's tags."""
        return frozenset(tag.strip() for tag in self.saved_model_tags.split(",") if tag.strip())

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """Origins whose pages may call."""
        return tuple(origin.strip() for origin in self.rest_api_cors_origins.split(",") if origin.strip())


def _is_int32(text: str) -> bool:
    try:
        return -(2**31) <= int(text) < 2**31
    except ValueError:
        return False
