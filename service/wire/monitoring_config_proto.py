"""Parses whether metrics are served, and under which HTTP path, from the text form of a MonitoringConfig message.

tensorflow-serving-api does not have this message, so its three fields are declared here.

Source: tensorflow_serving/config/monitoring_config.proto, util/proto_util.h (9d981c5).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from service.artifact.protos import Field, MessageClass, TextFormError, declared_class, fill_from_text
from service.errors import InvalidRequest


class PrometheusConfig(NamedTuple):
    """The content of a MonitoringConfig: whether metrics are served, and their HTTP path; "" is the default path."""

    enable: bool = False
    path: str = ""


def parse_monitoring_text(text: str, source: str) -> PrometheusConfig:
    """Parses the text of a --monitoring_config_file; returns its PrometheusConfig.

    Args:
      source: the file's name, for error texts.

    Raises:
      InvalidRequest: the text is not the text form of a MonitoringConfig.
    """
    message = _message_class()()
    try:
        fill_from_text(message, text)
    except (TextFormError, UnicodeError) as error:
        raise InvalidRequest(f"Invalid protobuf file: '{source}': {error}") from error
    return PrometheusConfig(message.prometheus_config.enable, message.prometheus_config.path)


@cache
def _message_class() -> MessageClass:
    return declared_class(
        "tensorflow.serving.MonitoringConfig",
        {
            "PrometheusConfig": [Field("enable", 1, "bool"), Field("path", 2, "string")],
            "MonitoringConfig": [Field("prometheus_config", 1, "tensorflow.serving.PrometheusConfig")],
        },
    )
