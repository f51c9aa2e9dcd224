"""The file that says where metrics are to be had."""

from __future__ import annotations

from pathlib import Path

from service.configuration.text_file import read_proto_text
from service.errors import InvalidRequest
from service.wire.monitoring_config_proto import PrometheusConfig, parse_monitoring_text

# Ours, and TensorFlow Serving's default.
OWN_PATH = "/metrics"
DEFAULT_PATH = "/monitoring/prometheus/metrics"


def read_monitoring_config(path: Path) -> PrometheusConfig:
    """Reads a --monitoring_config_file; raises InvalidRequest."""
    return parse_monitoring_text(read_proto_text(path), str(path))


def metrics_paths(config: PrometheusConfig | None) -> tuple[str, ...]:
    """Returns the paths of the metrics, OWN_PATH first; none where a config does not enable them.

    Args:
      config: None: there is no file, so metrics are on.

    Raises:
      InvalidRequest: no request can have its path, or another route has it.
    """
    if config is None:
        return (OWN_PATH, DEFAULT_PATH)
    if not config.enable:
        return ()
    path = config.path or DEFAULT_PATH
    if not path.startswith("/") or set(path) & set("{}?#% "):
        raise InvalidRequest(f"prometheus_config.path is {path!r}: it must start with '/' and hold none of {{}}?#%")
    if path in ("/healthz", "/readyz", "/docs", "/openapi.json") or path.startswith("/v1/models/"):
        raise InvalidRequest(f"prometheus_config.path is {path!r}, where this server has another answer")
    return (OWN_PATH,) if path == OWN_PATH else (OWN_PATH, path)
