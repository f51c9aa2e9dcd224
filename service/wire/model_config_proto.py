"""Parses the list of models in a ModelServerConfig message, from a config file's text or from a reload request.

Source: tensorflow_serving/config/model_server_config.proto, apis/model_management.proto,
model_servers/{server_core,model_service_impl}.cc, util/proto_util.h (9d981c5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from service.artifact.protos import Field, TextFormError, extended_class, fill_from_text, message_class
from service.engine.model_config import PLATFORM, ModelConfig, RequestLogConfig
from service.engine.version_policy import All, Latest, Specific, VersionPolicy
from service.errors import InvalidRequest
from service.remote.address import remote_tables
from service.wire.proto_message import parse_message

_MODEL_TYPE_TENSORFLOW = 1
# Pattern of the marker "#@" before a field that only this server's model config has; TensorFlow Serving reads such a
# line as a comment.
_OWN_LINE = re.compile(r"^([ \t]*)#@", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReloadRequest:
    """A parsed HandleReloadConfigRequest."""

    models: tuple[ModelConfig, ...]
    metric_names: tuple[str, ...]


def parse_config_text(text: str, source: str) -> tuple[ModelConfig, ...] | None:
    """Parses the list of models in a config file's text; returns None if the text is empty.

    A line that begins with `#@` has fields that TensorFlow Serving lacks: `#@ remote_tables: "user=valkey://..."`.

    Args:
      source: the file's name, for error texts.

    Raises:
      InvalidRequest: the text is not the text form of a ModelServerConfig, or has no list of models.
    """
    # Two blanks replace the "#@" before a field that only this server has: the parser then reads the field, and the
    # columns in its error texts are those of the file.
    own, count = _OWN_LINE.subn(r"\1  ", text)
    message = _config_with_own_fields()() if count else message_class("tensorflow.serving.ModelServerConfig")()
    try:
        fill_from_text(message, own)
    except (TextFormError, UnicodeError) as error:
        raise InvalidRequest(f"Invalid protobuf file: '{source}': {error}") from error
    choice = message.WhichOneof("config")
    if choice is None:
        return None
    if choice == "custom_model_config":
        raise InvalidRequest("custom_model_config is not supported; list the models in a model_config_list.")
    return _models(message)


def decode_reload_request(data: bytes) -> ReloadRequest:
    """Parses the models and metric names of a ReloadConfigRequest; raises MalformedPayload, InvalidRequest."""
    message = parse_message("tensorflow.serving.ReloadConfigRequest", data)
    if message.config.WhichOneof("config") != "model_config_list":
        raise InvalidRequest(
            "ServerModelConfig type not supported by HandleReloadConfigRequest. Only ModelConfigList is currently "
            "supported"
        )
    return ReloadRequest(_models(message.config), tuple(message.metric_names))


def encode_reload_response(metric_names: Iterable[str]) -> bytes:
    """Encodes the ReloadConfigResponse of a reload that succeeded.

    The metrics in a request are TensorFlow's own, which this server lacks, so that their increase is 0.
    """
    response = message_class("tensorflow.serving.ReloadConfigResponse")()
    response.status.SetInParent()
    for name in sorted(set(metric_names)):
        response.metric.add(name=name, int64_value_increase=0)
    return bytes(response.SerializeToString())


@cache
def _config_with_own_fields() -> Any:
    fields = [Field("remote_tables", 1000, "string", is_repeated=True)]
    return extended_class("tensorflow.serving.ModelServerConfig", "ModelConfig", fields)


def _models(message: Any) -> tuple[ModelConfig, ...]:
    return tuple(_model(config) for config in message.model_config_list.config)


def _model(config: Any) -> ModelConfig:
    return ModelConfig(
        name=config.name,
        base_path=config.base_path,
        policy=_policy(config.model_version_policy),
        labels=dict(config.version_labels),
        platform=_platform(config),
        request_log=_request_log(config.logging_config) if config.HasField("logging_config") else None,
        remote_tables=_remote_tables(config),
    )


def _remote_tables(config: Any) -> tuple[str, ...]:
    # TensorFlow Serving's own ModelConfig message has no field remote_tables, so getattr() returns () for such a
    # message.
    found = tuple(getattr(config, "remote_tables", ()))
    try:
        remote_tables(";".join(found))
    except ValueError as error:
        raise InvalidRequest(f"Model {config.name}: remote_tables: {error}") from error
    return found


def _request_log(logging: Any) -> RequestLogConfig:
    sampling = logging.sampling_config
    fields = [("custom_logging_config", logging), ("attributes", sampling), ("per_task_sampling_configs", sampling)]
    return RequestLogConfig(
        filename_prefix=logging.log_collector_config.filename_prefix,
        sampling_rate=sampling.sampling_rate,
        type=logging.log_collector_config.type,
        foreign=tuple(name for name, message in fields if name in {field.name for field, _ in message.ListFields()}),
    )


def _policy(policy: Any) -> VersionPolicy:
    match policy.WhichOneof("policy_choice"):
        case "all":
            return All()
        case "specific":
            return Specific(frozenset(policy.specific.versions))
        case _:
            return Latest(policy.latest.num_versions or 1)


def _platform(config: Any) -> str:
    """Returns a model's platform: its model_platform, or "tensorflow" if the deprecated model_type is that number;
    raises InvalidRequest.
    """
    if not config.model_type:
        return str(config.model_platform)
    if config.model_platform:
        raise InvalidRequest(
            "Illegal setting both ModelServerConfig::model_type (deprecated) and ModelServerConfig::model_platform, "
            f"model name is {config.name}"
        )
    if config.model_type != _MODEL_TYPE_TENSORFLOW:
        raise InvalidRequest(f"ModelServerConfig::model_type choice {config.model_type} not supported.")
    return PLATFORM
