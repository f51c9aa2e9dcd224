"""Starts tracing if the settings ask for it, and imports OpenTelemetry only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from service.configuration.settings import Settings, StartError
from service.configuration.settings_reading import installed_version, otlp_protocol

if TYPE_CHECKING:
    from service.observe.otel import OtelTracing, Protocol


def start_tracing(settings: Settings) -> OtelTracing | None:
    """Starts tracing; returns None if the settings do not ask for it.

    Raises:
      StartError: a package is missing, or the protocol is unknown.
    """
    if settings.tracing == "off":
        return None
    protocol = otlp_protocol()
    if protocol not in ("grpc", "http/protobuf"):
        raise StartError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}: expected grpc or http/protobuf")
    try:
        from service.observe.otel import OtelTracing
    except ModuleNotFoundError as error:
        raise StartError(
            f"--tracing needs a package that is not installed ({error}): in a checkout, pip install '.[otel]'"
        ) from error
    return OtelTracing(cast("Protocol", protocol), {"service.version": installed_version()})
