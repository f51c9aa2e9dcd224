"""Parses MonitoringConfig's text form as TensorFlow Serving's documentation writes it and its parser reads it."""

from __future__ import annotations

import pytest

from service.errors import InvalidRequest
from service.wire.config_protos import PrometheusConfig, parse_monitoring_text


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ('prometheus_config {\n  enable: true,\n  path: "/monitoring/x"\n}\n', (True, "/monitoring/x")),
        ("prometheus_config { enable: true }", (True, "")),
        ("prometheus_config: < path: '/x' > # off", (False, "/x")),
        ("prometheus_config {}", (False, "")),
        ("", (False, "")),
        ("# nothing", (False, "")),
    ],
)
def test_reads_the_text(text: str, config: tuple[bool, str]) -> None:
    assert parse_monitoring_text(text, "m.conf") == PrometheusConfig(*config)


@pytest.mark.parametrize("text", ["prometheus_config", "enable: true", "prometheus_config { enable: 7 }", "{}", "\0"])
def test_what_is_no_monitoring_config_is_refused_with_the_file_and_the_place(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^Invalid protobuf file: 'm\.conf': \d+:\d+ : "):
        parse_monitoring_text(text, "m.conf")
