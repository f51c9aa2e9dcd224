"""Keeps the models of the reference: versions found by the engine's policies; and says which settings it follows."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from service.configuration.settings import Settings, StartError
from service.engine.load_rules import LoadRules
from service.engine.model_config import ModelConfig
from service.engine.model_set import ModelSet
from service.engine.registry import Registry
from service.reference.model import Model, load_model
from service.types import ModelRef

logger = logging.getLogger(__name__)

# Settings that the reference server follows.
FOLLOWED = frozenset(
    {
        *("models", "model_base_path", "model_name", "model_config_file", "model_config_file_poll_wait_seconds"),
        *("strict", "strict_readiness", "strict_shapes", "model_reload_timeout_s", "refuse_unsafe_ops"),
        *("allow_version_labels_for_unavailable_models", "host", "port", "rest_api_port", "grpc_socket_path"),
        *("file_system_poll_wait_seconds", "max_num_load_retries", "load_retry_interval_micros", "load_timeout_s"),
        *("first_loads_timeout_s", "version_settle_s", "reload_replaced_versions", "saved_model_tags"),
        *("graph_signatures", "tensorflow_session_parallelism"),
        *("tensorflow_intra_op_parallelism", "tensorflow_inter_op_parallelism", "grpc_max_threads"),
        *("max_request_bytes", "max_response_bytes", "rest_api_strict_json", "rest_api_keep_alive_s"),
        *("grpc_channel_arguments", "enable_serialization_as_tensor_content", "shutdown_delay_s", "drain_timeout_s"),
        *("log_level", "log_format", "data_plane", "keep_freed_mib"),
    }
)
# Setting -> what it asks for, which the reference server does not do: the server would be less safe than asked for, or
# lack what the operator needs.
REFUSED: Mapping[str, str] = {
    "auth_config": "callers and rights",
    "console_secret_file": "the console",
    "admin_port": "the admin routes",
    "ssl_config_file": "TLS",
    "rest_api_ssl_config_file": "TLS",
    "remote_tables": "tables in clusters",
    "store_cache_dir": "object stores",
    "enable_batching": "batching",
    "batching_parameters_file": "batching",
    "enable_per_model_batching_parameters": "batching",
    "delta_journal_dir": "upserts",
    "request_log_root": "request logs",
    "monitoring_config_file": "metrics",
    "tracing": "traces",
    "max_drift": "the comparison of versions",
    "table_lock": "tables locked in memory",
    "verify_tables": "the comparison of tables with their checksums",
}


def check_settings(settings: Settings) -> None:
    """Raises StartError if a setting asks for what the reference server does not do; warns of those without effect."""
    changed = [field.name for field in dataclasses.fields(settings) if getattr(settings, field.name) != field.default]
    # "off" asks for what the reference server does.
    refused = [name for name in changed if name in REFUSED and getattr(settings, name) != "off"]
    if "tpu" in settings.tags:
        refused.append("saved_model_tags")
    if refused:
        told = (f"{REFUSED.get(name, 'graphs for a TPU')} (--{name})" for name in refused)
        raise StartError(
            f"the reference server does not do {', '.join(told)}: leave the flags out, or use the native core."
        )
    if idle := [f"--{name}" for name in changed if name not in FOLLOWED | REFUSED.keys()]:
        logger.warning("flags have no effect on the reference server", extra={"flags": idle})


def check_models(configs: Sequence[ModelConfig]) -> None:
    """Raises StartError if a list of models asks for what the reference server does not do."""
    for config in configs:
        if config.request_log is not None:
            raise StartError(f"model {config.name} has a logging_config: the reference server writes no request logs.")
        if config.remote_tables:
            raise StartError(f"model {config.name} has remote_tables: the reference server reads no clusters.")


class Models:
    """The models of a list, polled for new versions. Concurrency: any thread."""

    def __init__(self, settings: Settings) -> None:
        self.registry = Registry(lambda name, status: None, is_strict=settings.strict_readiness)
        rules = LoadRules(
            load=partial(load_model, settings),
            max_retries=settings.max_num_load_retries,
            retry_interval_s=settings.load_retry_interval_s,
            settle_s=settings.version_settle_s,
            load_timeout_s=settings.load_timeout_s,
            reloads_replaced=settings.reload_replaced_versions,
        )
        self.set = ModelSet(
            self.registry,
            rules,
            poll_interval_s=settings.file_system_poll_wait_seconds,
            reload_timeout_s=settings.model_reload_timeout_s,
            allow_labels_for_unavailable=settings.allow_version_labels_for_unavailable_models,
        )

    def start(self, configs: Sequence[ModelConfig]) -> None:
        """Starts to serve a list of models, without waiting until they are loaded; raises StartError."""
        check_models(configs)
        self.set.start(configs)

    @contextmanager
    def lease(self, ref: ModelRef) -> Iterator[Model]:
        """Keeps the version that a reference names loaded for one request.

        Raises:
          ModelNotFound, VersionNotFound, LabelNotFound, NotReady: there is no version that can answer.
        """
        with self.registry.lease(ref) as servable:
            assert isinstance(servable, Model)
            yield servable

    def problems(self) -> dict[str, str]:
        names = self.registry.models()
        return {name: problem for name in names if (problem := self.registry.problem(name))}
