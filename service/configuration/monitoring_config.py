"""Reads --monitoring_config_file, which names the HTTP path of the metrics."""

from __future__ import annotations

from pathlib import Path

from service.configuration.text_file import read_proto_text
from service.errors import InvalidRequest
from service.wire.monitoring_config_proto import PrometheusConfig, parse_monitoring_text

# HTTP paths of the metrics: this server's own, and TensorFlow Serving's default.
OWN_PATH = "/metrics"
DEFAULT_PATH = "/monitoring/prometheus/metrics"


def read_monitoring_config(path: Path) -> PrometheusConfig:
    return parse_monitoring_text(read_proto_text(path), str(path))


def metrics_paths(config: PrometheusConfig | None) -> tuple[str, ...]:
    """Returns the HTTP paths of the metrics, OWN_PATH first; none if the config does not enable metrics.

    Args:
      config: None: there is no file, so metrics are on.

    Raises:
      InvalidRequest: the path is no valid URL path, or belongs to another route.
    """
    if config is None:
        return (OWN_PATH, DEFAULT_PATH)
    if not config.enable:
        return ()
    path = config.path or DEFAULT_PATH
    if not path.startswith("/") or set(path) & set("{}?#% "):
        raise InvalidRequest(f"prometheus_config.path is {path!r}: it must start with '/' and hold none of {{}}?#%")
    if path in ("/healthz", "/readyz", "/docs", "/openapi.json") or path.startswith("/v1/models/"):
        raise InvalidRequest(f"prometheus_config.path is {path!r}, which is another route of this server")
    return (OWN_PATH,) if path == OWN_PATH else (OWN_PATH, path)
