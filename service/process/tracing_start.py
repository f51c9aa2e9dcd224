"""Starts tracing, as the settings ask for it; raises StartError if that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.configuration.settings import Settings
from service.configuration.start_error import StartError
from service.observe.tracing import TracingUnavailable, start_tracing

if TYPE_CHECKING:
    from service.observe.otel import OtelTracing


def tracing_of(settings: Settings) -> OtelTracing | None:
    """Starts tracing; returns None if the settings ask for none. Raises StartError if tracing can not start."""
    try:
        return start_tracing(settings)
    except TracingUnavailable as error:
        raise StartError(str(error)) from error
