"""Declares the settings of models, callers, ports and graphs. A flag of TensorFlow Serving keeps its meaning here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from service.configuration.control_groups import num_processors

if TYPE_CHECKING:
    from service.types import GraphThreads

# Type of a setting of a TCP port: a number, 0 for no port, or "auto" for a free port that the system picks.
Port: TypeAlias = int | Literal["auto"]


# The largest value of the flags of tensorflow_model_server that are numbers. In gRPC it means no limit, too.
MAX_INT = 2**31 - 1


def setting(default: Any, about: str, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"about": about, "low": low, "high": high})


def _hosts(text: str) -> tuple[str, ...]:
    """Splits a list of addresses. With ::, which is all addresses of IPv4, too, those of IPv4 are left out.

    >>> _hosts("127.0.0.1, [::1]"), _hosts("0.0.0.0,::")
    (('127.0.0.1', '::1'), ('::',))
    """
    hosts = [one.strip() for one in text.split(",")]
    hosts = [one[1:-1] if one.startswith("[") and one.endswith("]") else one for one in hosts]
    return tuple(dict.fromkeys(one for one in hosts if "::" not in hosts or ":" in one))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The base class with the settings of models and ports; only its subclass Settings is instantiated."""

    models: str = setting(
        "",
        "Folders of models, or of the versions of one model, separated by commas; a model is named after its folder. "
        "Arguments that are no flags are such folders, too. They are read once, at the start.",
    )
    model_base_path: str = setting(
        "",
        "Folder with a sub-folder per version, or such a place in an object store; not used with a model_config_file.",
    )
    model_name: str = setting(
        "default", "Name under which the model is served, if there is one; not used with a model_config_file."
    )
    model_config_file: str = setting(
        "", "File that lists the models: the text form of TensorFlow Serving's ModelServerConfig."
    )
    model_config_file_poll_wait_seconds: float = setting(
        0.0, "Seconds between reads of model_config_file; 0 or less: it is read once, at the start.", -MAX_INT, MAX_INT
    )
    strict: bool = setting(
        False,
        "Whether the start fails (exit status 1) if a model has no version to load, and a version is refused if one of "
        "its predicts can not be run. Else the server waits for a version, as TensorFlow Serving does, and serves the "
        "signatures that it can run.",
    )
    strict_readiness: bool = setting(False, "Whether readiness needs every model to answer, and not only one of them.")
    strict_shapes: bool = setting(
        False,
        "Whether predicts are refused whose inputs have other shapes than the signature declares. Else their graph is "
        "run, as by TensorFlow Serving.",
    )
    model_reload_timeout_s: float = setting(
        300.0, "Seconds within which the new models of a new list, from the file or a request, must answer.", 0, 86400
    )
    allow_version_labels_for_unavailable_models: bool = setting(
        False, "Whether a new version label may point to a version that is not AVAILABLE."
    )
    model_root: str = setting(
        "",
        "Folder, or place in an object store, below which reload requests without the right 'admin' may add models. "
        "Without it, such a request may add models beside those that are served already; see docs/security.md.",
    )
    monitoring_config_file: str = setting(
        "",
        "File with the path of the metrics: the text form of TensorFlow Serving's MonitoringConfig. Without it the "
        "metrics are at /metrics and /monitoring/prometheus/metrics.",
    )
    auth_config: str = setting(
        "",
        "TOML file of callers and their rights on models; see docs/security.md. Without it everybody has all rights.",
    )
    console_secret_file: str = setting(
        "",
        "File with a secret of 32 characters or more. Replicas with the same secret know each other's sessions "
        "of the console. Further lines are older secrets; sessions that they signed stay valid.",
    )
    admin_port: Port = setting(
        0, "HTTP port of the admin routes, which change the server; 0: none, 'auto' picks a free port.", 0, 65535
    )
    admin_host: str = setting(
        "127.0.0.1",
        "Comma-separated addresses of the admin port; an address that other machines can reach needs an auth_config.",
    )
    ssl_config_file: str = setting(
        "",
        "File with the gRPC port's key and certificate, and the authorities of its clients: the text form of "
        "TensorFlow Serving's SSLConfig, read again when it changes. Without it gRPC is plaintext.",
    )
    rest_api_ssl_config_file: str = setting(
        "", "File like ssl_config_file for the HTTP port; it may be the same file. Without it HTTP is plaintext."
    )
    host: str = setting(
        "::",
        "Comma-separated addresses to listen on, for HTTP and gRPC; '::' is all addresses of IPv4, and of IPv6 where "
        "the system has it.",
    )
    port: Port = setting(8500, "gRPC port; 0: no gRPC port, 'auto' picks a free port.", 0, 65535)
    rest_api_port: Port = setting(8501, "HTTP port; 0: no HTTP port, 'auto' picks a free port.", 0, 65535)
    threads: str = setting(
        "auto",
        "Threads of the native core that serve connections; 'auto' is one for each processor, or as many as the CPU "
        "quota allows.",
    )
    file_system_poll_wait_seconds: float = setting(
        1.0,
        "Seconds between scans for new versions; 0 scans once, at the start. auth_config and certificates are read as "
        "often, and at least every second.",
        0,
        MAX_INT,
    )
    num_load_threads: int = setting(
        0, "How many versions of all models may load at the same time; 0: one version of each model.", 0, 1024
    )
    max_num_load_retries: int = setting(
        5,
        "How often the load of a version with a fault in its folder is tried again; other failures are tried for ever.",
        0,
        MAX_INT,
    )
    load_retry_interval_micros: int = setting(
        60_000_000, "Microseconds between two attempts to load a version; less than 0 is 0.", -(10**12), 10**12
    )
    load_timeout_s: float = setting(
        3600.0,
        "Seconds after which a version's load is given up, so that other versions can be loaded; 0: never. The "
        "version is then END with DEADLINE_EXCEEDED.",
        0,
        604800,
    )
    first_loads_timeout_s: float = setting(
        20.0,
        "Longest time in seconds for which the ports stay closed at the start, until each model has loaded, has "
        "failed, or answers its lookups; 0: the ports open at once.",
        0,
        604800,
    )
    version_settle_s: float = setting(
        1.0,
        "Seconds for which a version's folder must not have changed before it is loaded, unless its manifest shows "
        "that all files are complete.",
        0,
        3600,
    )
    reload_replaced_versions: bool = setting(
        False,
        "Whether a served version is loaded again when other files lie under its number; else it is only reported.",
    )
    enable_model_warmup: bool = setting(
        True, "Whether assets.extra/tf_serving_warmup_requests is replayed before a version is AVAILABLE."
    )
    num_request_iterations_for_warmup: int = setting(
        0, "How often each recorded warm-up request is run; 0 or less: once.", -MAX_INT, MAX_INT
    )
    max_drift: float = setting(
        100.0,
        "Most per cent of a table's rows that may have drifted from the newest AVAILABLE version; a newer version "
        "beyond it is not loaded. 100: versions are not compared. See docs/diff.md.",
        0,
        100,
    )
    saved_model_tags: str = setting("serve", "Comma-separated tags of the MetaGraph to load.")
    graph_signatures: Literal["auto", "whole", "lazy", "off"] = setting(
        "auto",
        "Signatures that need TensorFlow: 'auto' loads their graph with the version if TensorFlow is installed, and "
        "looks rows up in the mapped tables, outside the graph, where the graph can be cut; 'whole' runs the whole "
        "graph, on tables that TensorFlow loads; 'lazy' loads the graph at the first request for one of them, 'off' "
        "never.",
    )
    refuse_unsafe_ops: Literal["auto", "on", "off"] = setting(
        "auto",
        "Whether a version is not loaded if its signatures or its init op would run TensorFlow operations that touch "
        "files, processes or the network: 'auto' refuses them in models that a reload request added or moved; see "
        "docs/security.md.",
    )
    tensorflow_session_parallelism: int = setting(
        0,
        "TensorFlow threads within an operation, and operations that it runs side by side; 0: as many as "
        "--threads=auto.",
        0,
        1024,
    )
    tensorflow_intra_op_parallelism: int = setting(
        0,
        "TensorFlow threads within an operation; 0: as tensorflow_session_parallelism; if that is 0, too, one, and in "
        "long runs as many as --threads=auto.",
        0,
        1024,
    )
    tensorflow_inter_op_parallelism: int = setting(
        0,
        "Operations that TensorFlow runs side by side. 0: one by one on the request's thread, which is faster unless "
        "several long ones can run at once; in a graph with loops, conditions or operations that may wait, as "
        "tensorflow_session_parallelism.",
        0,
        1024,
    )
    enable_batching: bool = setting(False, "Whether requests that wait for the same graph are run together.")
    batching_parameters_file: str = setting(
        "",
        "File of batching parameters, in the text form of TensorFlow Serving's BatchingParameters; empty: defaults.",
    )
    enable_per_model_batching_parameters: bool = setting(
        False,
        "Whether batching parameters come from batching_params.pbtxt in each version's folder; a version without it is "
        "not batched. Only num_batch_threads and thread_pool_name are then read from batching_parameters_file.",
    )

    @property
    def model_folders(self) -> tuple[str, ...]:
        return tuple(path.strip() for path in self.models.split(",") if path.strip())

    @property
    def hosts(self) -> tuple[str, ...]:
        return _hosts(self.host)

    @property
    def local_host(self) -> str:
        """The address by which clients on this machine reach the server."""
        host = self.hosts[0]
        return "127.0.0.1" if host in ("0.0.0.0", "::") else host

    @property
    def admin_hosts(self) -> tuple[str, ...]:
        return _hosts(self.admin_host)

    @property
    def num_threads(self) -> int:
        if self.threads == "auto":
            return num_processors()
        return int(self.threads) if self.threads.isascii() and self.threads.isdigit() else 0

    @property
    def load_retry_interval_s(self) -> float:
        return max(self.load_retry_interval_micros, 0) / 1e6

    @property
    def secrets_poll_s(self) -> float:
        return min(self.file_system_poll_wait_seconds or 1.0, 1.0)

    @property
    def graph_threads(self) -> int:
        # TensorFlow itself would choose all processors, whatever the CPU quota is.
        return self.tensorflow_session_parallelism or num_processors()

    @property
    def parallelism(self) -> GraphThreads:
        # Imported here and not at the top, because it imports numpy: see prepare_libraries().
        from service.types import GraphThreads

        within_op = self.tensorflow_intra_op_parallelism or self.tensorflow_session_parallelism
        return GraphThreads(self.graph_threads, within_op or None, self.tensorflow_inter_op_parallelism or None)

    @property
    def warmup_iterations(self) -> int:
        """How often each recorded warm-up request is run when a version is loaded; 0: warm-up is off."""
        return max(self.num_request_iterations_for_warmup, 1) if self.enable_model_warmup else 0

    @property
    def tags(self) -> frozenset[str]:
        return frozenset(tag.strip() for tag in self.saved_model_tags.split(",") if tag.strip())
