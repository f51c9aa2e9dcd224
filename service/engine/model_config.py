"""Declares the configuration of a model, and checks lists of such configurations.

Texts are TensorFlow Serving's. Source: tensorflow_serving/config/model_server_config.proto,
model_servers/server_core.cc, core/server_request_logger.cc (9d981c5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from service.engine.version_policy import Latest, VersionPolicy
from service.errors import ArtifactError, InvalidRequest, ServiceError

PLATFORM = "tensorflow"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9.]*://")
_IN_STORE = re.compile(r"(s3|gs|az)://[^/]+(/.*)?")


# Who chose a model's base path, the most trusted first: the operator (flags, the --model_config_file), a request of a
# caller with the right "admin", or a request of a client without that right.
Origin = Literal["operator", "admin", "client"]
# The whole reason that clients get if a model that a client has added can not be loaded; the log has the real one. With
# other texts a client could learn which files and folders this machine has.
UNTOLD = "it can not be loaded from its base path; the server's log has the reason"
# Supported values of the field type in a logging_config's log collector; "" if the config names no type.
LOG_TYPES = ("", "file")


@dataclass(frozen=True, slots=True)
class RequestLogConfig:
    """The file and the sampling rate of a model's request log, from its logging_config.

    filename_prefix: absolute. sampling_rate: 0 to 1. foreign: fields that this server does not support.
    """

    filename_prefix: str
    sampling_rate: float
    type: str = ""
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configuration of one model: name, base path, policy of versions, labels and request log.

    base_path: absolute folder of the model's versions, or a URI of an object store.
    labels: label -> version.
    platform: "" if the list of models names none for the model.
    request_log: from the model's logging_config; None without one.
    remote_tables: TABLE=ADDRESS of each table that is read from a cluster.
    origin: who chose the base path.
    """

    name: str
    base_path: str
    policy: VersionPolicy = Latest()
    labels: Mapping[str, int] = field(default_factory=dict)
    platform: str = PLATFORM
    request_log: RequestLogConfig | None = None
    remote_tables: tuple[str, ...] = ()
    origin: Origin = "operator"

    def told(self, reason: str) -> str:
        """Returns the reason why a version can not be loaded, as clients may see it."""
        return UNTOLD if self.origin == "client" else reason

    def told_error(self, error: ServiceError) -> ServiceError:
        """Returns the error of a version that can not be loaded, as clients may see it."""
        return ArtifactError(UNTOLD) if self.origin == "client" else error


def is_in_store(base_path: str) -> bool:
    """Says whether a base path is the URI of an object store's bucket or of a folder in it, and not a local folder.

    >>> [is_in_store(path) for path in ("s3://bucket/m", "gs://bucket", "s3:///m", "hdfs://host/m", "/m")]
    [True, True, False, False, False]
    """
    return _IN_STORE.fullmatch(base_path) is not None


def check_list(configs: Sequence[ModelConfig], *, has_stores: bool = False) -> None:
    """Checks a list of models: raises InvalidRequest for missing or repeated names, and for unsupported base paths.

    Args:
      has_stores: whether base paths may lie in object stores.
    """
    names: set[str] = set()
    for config in configs:
        if config.name in names:
            raise InvalidRequest(f"Illegal to list model {config.name} multiple times in config list")
        names.add(config.name)
    for config in configs:
        if not config.name:
            raise InvalidRequest(f"A model without a name is listed, its base_path is {config.base_path}")
        if is_in_store(config.base_path):
            if not has_stores:
                raise InvalidRequest(
                    f"Model {config.name}: base_path {config.base_path} is in an object store, so --store_cache_dir "
                    "must name a folder for its versions"
                )
            continue
        if _URI.match(config.base_path):
            raise InvalidRequest(
                f"Model {config.name}: base_path {config.base_path} is a URI; this server reads mounted folders, and "
                "s3://, gs:// and az://"
            )
        if not config.base_path.startswith("/"):
            raise InvalidRequest(
                f"Expected model {config.name} to have an absolute path or URI; got base_path()={config.base_path}"
            )


def check_platforms_kept(old: Mapping[str, ModelConfig], new: Iterable[ModelConfig]) -> None:
    """Raises InvalidRequest if a new list of models changes the platform of a model that is served already."""
    for config in new:
        if config.name not in old:
            continue
        before = old[config.name].platform
        if _named_platform(config) != before:
            raise InvalidRequest(
                f"Illegal to change a model's platform. For model {config.name} platform was {before} and new "
                f"platform requested is {config.platform}"
            )


def check_platforms_known(configs: Iterable[ModelConfig]) -> None:
    """Raises InvalidRequest if a model has an unsupported platform or an unsupported request log."""
    for config in configs:
        if _named_platform(config) != PLATFORM:
            raise InvalidRequest(f"Model {config.name} requests unsupported platform {config.platform}")
        if config.request_log is not None:
            _check_request_log(config.name, config.request_log)


def _check_request_log(model: str, log: RequestLogConfig) -> None:
    if log.type not in LOG_TYPES:
        raise InvalidRequest(f"Cannot find LogCollector::Factory for type: {log.type}")
    if log.foreign:
        raise InvalidRequest(f"Model {model}: {log.foreign[0]} of logging_config is not supported")
    if not log.filename_prefix:
        raise InvalidRequest("No request-logger-creator provided.")
    if not log.filename_prefix.startswith("/"):
        raise InvalidRequest(
            f"Model {model}: filename_prefix of logging_config must be absolute; got {log.filename_prefix}"
        )
    if not 0 <= log.sampling_rate <= 1:
        raise InvalidRequest(
            f"Model {model}: sampling_rate of logging_config is {log.sampling_rate:g}: expected 0 to 1"
        )


def _named_platform(config: ModelConfig) -> str:
    if not config.platform:
        raise InvalidRequest(
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
            f"ModelServerConfig::model_platform, model name is {config.name}"
        )
    return config.platform
