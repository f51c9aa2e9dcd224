"""MonitoringConfig, as the text of a file, to what it says of Prometheus.

tensorflow-serving-api does not have this message, so its three fields are written down here.

Source: tensorflow_serving/config/monitoring_config.proto, util/proto_util.h (9d981c5).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from service.codecs.protos import MessageClass
from service.core.errors import InvalidRequest


class PrometheusConfig(NamedTuple):
    """Whether metrics are to be had, and where; path "" is the default one."""

    enable: bool = False
    path: str = ""


def parse_monitoring_text(text: str, source: str) -> PrometheusConfig:
    """Reads a --monitoring_config_file's text.

    Args:
      source: the file's name, for the message.

    Raises:
      InvalidRequest: it is not the text form of a MonitoringConfig.
    """
    message = _message_class()()
    try:
        text_format.Parse(text, message)
    except (text_format.ParseError, UnicodeError) as error:
        raise InvalidRequest(f"Invalid protobuf file: '{source}': {error}") from error
    return PrometheusConfig(message.prometheus_config.enable, message.prometheus_config.path)


@cache
def _message_class() -> MessageClass:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="embedding_server/monitoring_config.proto", package="tensorflow.serving", syntax="proto3"
    )
    prometheus = file.message_type.add(name="PrometheusConfig")
    prometheus.field.add(name="enable", number=1, type=kinds.TYPE_BOOL, label=kinds.LABEL_OPTIONAL)
    prometheus.field.add(name="path", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    file.message_type.add(name="MonitoringConfig").field.add(
        name="prometheus_config",
        number=1,
        type=kinds.TYPE_MESSAGE,
        type_name=".tensorflow.serving.PrometheusConfig",
        label=kinds.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.serving.MonitoringConfig"))
