"""Declares the dataclass of all settings; adds the settings of tables to its base classes' settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from service.configuration.listener_settings import ListenerSettings
from service.configuration.setting_fields import setting
from service.engine.admission_limits import NeighborLimits

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
    "rest_api_max_head_bytes": "HTTP",
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
class Settings(ListenerSettings):
    """All settings of the server; each field can be set by a flag of its name or an environment variable EMB_<NAME>."""

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
    warm: bool = setting(
        False,
        "Whether a version is AVAILABLE only after the rows that its training looked up most were read into memory.",
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
        "Most bytes of rows of remote tables that the native core caches, those that are read most; 0: no cache.",
        0,
        1 << 44,
    )
    remote_cache_fill_seconds: float = setting(
        10.0,
        "Longest time, in seconds, that the server reads hot rows of remote tables into the cache before a version "
        "is AVAILABLE; 0: it reads none.",
        0,
        3600,
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
    table_prefault: bool = setting(False, "Whether all pages of a version's tables are read before it is AVAILABLE.")
    table_prefault_mib_per_s: float = setting(
        0.0,
        "Most MiB per second that table_prefault reads, or that are read again as huge pages; 0: no limit.",
        0,
        1_000_000,
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
        "Pages of the mapped tables: 'auto' turns pages in memory into huge pages beside the first answers where "
        "that is cheap; 'huge' turns all pages into huge pages before AVAILABLE; 'normal' changes nothing; 'random' "
        "turns reading ahead off.",
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
    delta_max_rows: int = setting(65_536, "Largest upsert, in rows.", 1, 10_000_000)
    delta_max_file_mib: int = setting(256, "Largest delta file, in MiB.", 1, 2047)
    delta_journal_max_mib: int = setting(1024, "Largest journal of a version, in MiB.", 1, 1 << 20)
    neighbors_threads: int = setting(
        1,
        "Searches for nearest rows that run at a time, at low priority, and threads of a search that runs alone.",
        1,
        1024,
    )
    neighbors_max_k: int = setting(1000, "Most nearest rows that a search may ask for, for each query.", 1, 1_000_000)
    neighbors_max_queries: int = setting(256, "Most queries of one search for nearest rows.", 1, 1_000_000)

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
    def neighbor_limits(self) -> NeighborLimits:
        return NeighborLimits(
            self.neighbors_max_k, self.neighbors_max_queries, self.neighbors_threads, self.neighbors_index_rows
        )
