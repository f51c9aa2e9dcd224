"""The monitoring config says at which path metrics are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.configuration.config_files import metrics_paths, read_monitoring_config
from service.errors import InvalidRequest
from service.http.http_app import DEFAULT_METRICS_PATHS
from service.wire.config_protos import PrometheusConfig


@pytest.mark.parametrize(
    ("config", "paths"),
    [
        (None, ("/metrics", "/monitoring/prometheus/metrics")),
        (PrometheusConfig(True), ("/metrics", "/monitoring/prometheus/metrics")),
        (PrometheusConfig(True, "/monitoring/prometheus/metrics"), ("/metrics", "/monitoring/prometheus/metrics")),
        (PrometheusConfig(True, "/m/x"), ("/metrics", "/m/x")),
        (PrometheusConfig(True, "/metrics"), ("/metrics",)),
        (PrometheusConfig(False, "/m/x"), ()),
        (PrometheusConfig(), ()),
    ],
)
def test_paths(config: PrometheusConfig | None, paths: tuple[str, ...]) -> None:
    assert metrics_paths(config) == paths


def test_the_default_is_the_applications_too() -> None:
    assert metrics_paths(None) == DEFAULT_METRICS_PATHS


@pytest.mark.parametrize("path", ["metrics", "/a{b}", "/a?b", "/a b", "/healthz", "/docs", "/v1/models/m/metadata"])
def test_a_path_that_can_not_be_served_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="^prometheus_config.path is "):
        metrics_paths(PrometheusConfig(True, path))


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.conf"
    path.write_text('prometheus_config { enable: true path: "/x" }')
    assert read_monitoring_config(path) == PrometheusConfig(True, "/x")
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="it is not UTF-8 text"):
        read_monitoring_config(path)
    with pytest.raises(InvalidRequest, match="^cannot read .*: No such file or directory$"):
        read_monitoring_config(tmp_path / "nobody")
