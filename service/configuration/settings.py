"""Every setting: one frozen object, of those of the server and those of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from service.configuration.server_settings import ServerSettings
from service.configuration.setting_fields import setting

ENV_PREFIX = "EMB_"
# The sections of `--help` and docs/settings.md: the first setting of each, and its title.
SECTIONS: Mapping[str, str] = {
    "model_base_path": "Models",
    "auth_config": "Callers",
    "admin_port": "Addresses and certificates",
    "threads": "Threads of the native core",
    "file_system_poll_wait_seconds": "Loading of versions",
    "graph_signatures": "TensorFlow graphs",
    "enable_batching": "Batching of TensorFlow graphs",
    "lookup_threads": "Limits and overload",
    "rest_api_max_head_bytes": "HTTP",
    "grpc_socket_path": "gRPC",
    "shutdown_delay_s": "Shutdown and memory",
    "request_log_file_mib": "Logs and traces",
    "data_plane": "Data plane",
    "remote_tables": "Tables in clusters",
    "warm": "Tables in memory",
    "delta_poll_wait_seconds": "Changes of rows",
}


@dataclass(frozen=True, slots=True)
class Settings(ServerSettings):
    """Settings of the server; every field is a flag of the same name and a variable EMB_<NAME>."""

    data_plane: Literal["auto", "native", "python"] = setting(
        "auto",
        "What answers requests: 'native' is the compiled core, with many threads, 'python' is slower and answers "
        "the same; 'auto' is native where the core is installed and the other settings allow it.",
    )
    remote_tables: str = setting(
        "",
        "Tables that are read from Valkey or Redis clusters and not mapped, separated by semicolons: "
        "TABLE=valkey://HOST:PORT,...?OPTION=VALUE or MODEL/TABLE=...; see docs/scaling.md. `model-export push` writes "
        "them there.",
    )
    warm: bool = setting(False, "Whether the rows that a training looked up most are read before AVAILABLE.")
    table_prefault: bool = setting(False, "Whether all pages of a version's tables are read before it is AVAILABLE.")
    table_prefault_mib_per_s: float = setting(
        0.0,
        "MiB per second that are then read at most, or read again as huge pages; 0 is as fast as it goes.",
        0,
        1_000_000,
    )
    table_lock: Literal["off", "try", "require"] = setting(
        "off",
        "Whether tables are locked in memory: 'try' logs a warning where the system does not allow it, 'require' fails "
        "the load.",
    )
    verify_tables: Literal["auto", "background", "before_available", "off"] = setting(
        "auto",
        "When tables are held against the checksums in their checkpoint's index: 'before_available', in the "
        "'background' beside the first answers, or 'auto': before where another version answers meanwhile, else beside "
        "them. A version that is wrong is not loaded, or is taken out.",
    )
    verify_tables_mib_per_s: float = setting(
        512.0, "MiB of tables that are verified in a second; 0: as many as there are.", 0, 1_000_000
    )
    table_pages: Literal["auto", "normal", "random", "huge"] = setting(
        "auto",
        "Tables' pages: 'auto' has those in memory read again as huge ones beside the first answers, where the file "
        "system has such, its disk is fast and they fit twice into memory; 'huge' reads all so before AVAILABLE; "
        "'normal' leaves them; 'random' reads none ahead.",
    )
    delta_poll_wait_seconds: float = setting(
        0.2, "Seconds between looks for deltas, rows that change without a new version; 0: none are taken.", 0, 3600
    )
    delta_journal_dir: str = setting("", "Folder that keeps upserts over a restart; without one upserts are refused.")
    delta_max_rows: int = setting(65_536, "Largest upsert, in rows.", 1, 10_000_000)
    delta_max_file_mib: int = setting(256, "Largest delta file, in MiB.", 1, 2047)
    delta_journal_max_mib: int = setting(1024, "Largest journal of a version, in MiB.", 1, 1 << 20)
