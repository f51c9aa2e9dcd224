"""Parses the text forms of TensorFlow Serving's configuration files: models, batching, TLS and monitoring.

tensorflow-serving-api lacks the messages of batching, TLS and monitoring; artifact/server_config.proto has them.

Source: tensorflow_serving/config/{model_server_config,monitoring_config,ssl_config}.proto, apis/model_management.proto,
model_servers/{server,server_core,model_service_impl}.cc, util/proto_util.h, servables/tensorflow/
{session_bundle_config.proto,bundle_factory_util.cc} (9d981c5); tensorflow/core/kernels/batching_util/
shared_batch_scheduler.h (TensorFlow 2.21).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.artifact.protos import MessageClass, TextFormError, fill_from_text, message_class
from service.errors import InvalidRequest, did_you_mean
from service.remote.address import remote_tables
from service.versions.model_config import PLATFORM, All, Latest, ModelConfig, RequestLogConfig, Specific, VersionPolicy
from service.wire.api import parse_message


@dataclass(frozen=True, slots=True)
class BatchingParameters:
    """The batching parameters of a signature's queue. All sizes are numbers of rows, not of requests.

    max_batch_size: rows of the largest request, and of a batch.
    batch_timeout_micros: how long a batch that is not full waits for more requests; 0: not at all.
    max_enqueued_batches: batches that may wait, per signature; a request that needs one more is refused.
    num_batch_threads: batches run at the same time, over all models; None: as many as there are processors.
    allowed_batch_sizes: the sizes that batches are padded up to, increasing; the last is max_batch_size; empty: batches
      are not padded.
    pad_variable_length_inputs: whether inputs of unequal inner shapes may share a batch, padded to the largest.
    enable_large_batch_splitting: whether a request may be spread over several batches.
    max_execution_batch_size: rows of a batch where requests are split; None: max_batch_size.
    """

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int | None = None
    thread_pool_name: str = "batch_threads"
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = False
    enable_large_batch_splitting: bool = False
    max_execution_batch_size: int | None = None

    @property
    def batch_rows(self) -> int:
        if self.enable_large_batch_splitting and self.max_execution_batch_size is not None:
            return self.max_execution_batch_size
        return self.max_batch_size

    @property
    def document(self) -> dict[str, Any]:
        """The parameters of one signature's queue in the form that native/src/towers/batching/parameters.rs reads."""
        return {
            "max_batch_size": self.max_batch_size,
            "batch_timeout_micros": self.batch_timeout_micros,
            "max_enqueued_batches": self.max_enqueued_batches,
            "allowed_batch_sizes": self.allowed_batch_sizes,
            "pad_variable_length_inputs": self.pad_variable_length_inputs,
            "enable_large_batch_splitting": self.enable_large_batch_splitting,
            "max_execution_batch_size": self.batch_rows,
        }

    def check(self) -> None:
        """Checks the batching parameters; raises InvalidRequest, with TensorFlow Serving's text, for a wrong value."""
        if self.max_batch_size < 1:
            raise InvalidRequest(
                f"input_batch_size_limit must be positive; was {self.max_batch_size} (the field max_batch_size)"
            )
        if self.batch_timeout_micros < 0:
            raise InvalidRequest(f"batch_timeout_micros must be non-negative; was {self.batch_timeout_micros}")
        if self.max_enqueued_batches < (1 if self.enable_large_batch_splitting else 0):
            raise InvalidRequest(f"max_enqueued_batches must be positive; was {self.max_enqueued_batches}")
        if self.num_batch_threads is not None and self.num_batch_threads < 1:
            raise InvalidRequest(f"num_batch_threads must be positive; was {self.num_batch_threads}")
        if self.batch_rows < 1:
            raise InvalidRequest(f"max_execution_batch_size must be positive; was {self.batch_rows}")
        if self.batch_rows > self.max_batch_size:
            raise InvalidRequest(
                "When enable_large_batch_splitting is true, input_batch_size_limit must be greater than or equal to "
                f"max_execution_batch_size; they were {self.max_batch_size} and {self.batch_rows} "
                "(input_batch_size_limit is the field max_batch_size)"
            )
        self._check_allowed_sizes()

    def _check_allowed_sizes(self) -> None:
        sizes = self.allowed_batch_sizes
        if not sizes:
            return
        if sizes[0] < 1 or any(a >= b for a, b in zip(sizes, sizes[1:], strict=False)):
            raise InvalidRequest("allowed_batch_sizes entries must be monotonically increasing")
        if sizes[-1] != self.max_batch_size:
            raise InvalidRequest(
                "Last entry in allowed_batch_sizes must match max_batch_size; last entry was "
                f"{sizes[-1]}; expected {self.max_batch_size}"
            )


# Fields of BatchingParameters that are messages, written `max_batch_size { value: 128 }`, so that a missing field
# differs from 0.
_WRAPPED = (
    *("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads", "thread_pool_name"),
    *("enable_large_batch_splitting", "max_execution_batch_size"),
)


def parse_batching_text(text: str, source: str) -> BatchingParameters:
    """Parses the text of a --batching_parameters_file or of a version's batching_params.pbtxt.

    Raises:
      InvalidRequest: the text is not the text form of a BatchingParameters, or its values conflict.
    """
    message = _filled("tensorflow.serving.BatchingParameters", text, source)
    given: dict[str, Any] = {name: getattr(message, name).value for name in _WRAPPED if message.HasField(name)}
    parameters = BatchingParameters(
        **given,
        allowed_batch_sizes=tuple(message.allowed_batch_sizes),
        pad_variable_length_inputs=message.pad_variable_length_inputs,
    )
    try:
        parameters.check()
    except InvalidRequest as error:
        raise InvalidRequest(f"{source}: {error.message}") from error
    return parameters


def _filled(full_name: str, text: str, source: str) -> MessageClass:
    message = message_class(full_name)()
    try:
        fill_from_text(message, text)
    except (TextFormError, UnicodeError) as error:
        hint = _hint(text, str(error))
        raise InvalidRequest(f"Invalid protobuf file: '{source}': {error}{hint and f' ({hint})'}") from error
    return message


def _hint(text: str, error: str) -> str:
    if text.lstrip().startswith("{"):
        return "it looks like JSON; expected protobuf's text form"
    if unknown := re.search('Message type "(.+)" has no field named "(.+)"', error):
        fields = message_class(unknown[1]).DESCRIPTOR.fields_by_name
        return did_you_mean(unknown[2], fields).removeprefix("; ") or f"its fields are {', '.join(fields)}"
    return "a number is written NAME { value: 10 }" if re.search(r"\w:? \d+': Expected \"{\"", error) else ""


_MODEL_TYPE_TENSORFLOW = 1
# Pattern of the marker "#@" before a field that only this server's model config has; TensorFlow Serving reads such a
# line as a comment.
_OWN_LINE = re.compile(r"^([ \t]*)#@", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReloadRequest:
    models: tuple[ModelConfig, ...]
    metric_names: tuple[str, ...]


def parse_config_text(text: str, source: str) -> tuple[ModelConfig, ...] | None:
    """Parses the list of models in a config file's text; returns None if the text is empty.

    A line that begins with `#@` has fields that TensorFlow Serving lacks: `#@ remote_tables: "user=valkey://..."`.

    Raises:
      InvalidRequest: the text is not the text form of a ModelServerConfig, or has no list of models.
    """
    # Two blanks replace the "#@" before a field that only this server has: the parser then reads the field, and the
    # columns in its error texts are those of the file.
    own, count = _OWN_LINE.subn(r"\1  ", text)
    message = _filled(f"{'embedding_server' if count else 'tensorflow.serving'}.ModelServerConfig", own, source)
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


class PrometheusConfig(NamedTuple):
    """The content of a MonitoringConfig: whether metrics are served, and their HTTP path; "" is the default path."""

    enable: bool = False
    path: str = ""


def parse_monitoring_text(text: str, source: str) -> PrometheusConfig:
    """Parses the text of a --monitoring_config_file; returns its PrometheusConfig.

    Raises:
      InvalidRequest: the text is not the text form of a MonitoringConfig.
    """
    message = _filled("tensorflow.serving.MonitoringConfig", text, source)
    return PrometheusConfig(message.prometheus_config.enable, message.prometheus_config.path)


@dataclass(frozen=True, slots=True)
class SslConfig:
    """The TLS settings of a port; keys and certificates are PEM texts, not names of files.

    server_cert: the server's certificate, followed by the chain up to its authority's.
    custom_ca: certificates of the authorities that sign clients' certificates.
    client_verify: only clients with a certificate of these authorities may connect.
    """

    server_key: str = field(repr=False)
    server_cert: str
    custom_ca: str = ""
    client_verify: bool = False


def parse_ssl_config_text(text: str, source: str) -> SslConfig:
    """Parses the text of an --ssl_config_file into TLS settings.

    Raises:
      InvalidRequest: the text is not the text form of an SSLConfig; the error quotes nothing of it, because it holds a
        key.
    """
    message = message_class("tensorflow.serving.SSLConfig")()
    try:
        fill_from_text(message, text)
    except TextFormError as error:
        # The error text of the protobuf text parser is replaced, because it quotes the line with the fault, which may
        # be a line of the private key.
        place = "it" if error.line is None else f"line {error.line}"
        raise InvalidRequest(f"Invalid protobuf file: '{source}': {place} is not an SSLConfig's text") from None
    except UnicodeError:
        raise InvalidRequest(f"Invalid protobuf file: '{source}': it is not UTF-8 text") from None
    return SslConfig(message.server_key, message.server_cert, message.custom_ca, message.client_verify)
