"""Builds the admission control, which limits the requests in flight, from the settings."""

from __future__ import annotations

from service.configuration.settings import Settings
from service.engine.admission import Admission
from service.engine.admission_limits import Limits
from service.observe.metrics import Metrics


def create_admission(settings: Settings, metrics: Metrics) -> Admission:
    """Returns the admission control with the limits of the settings; it counts refused requests in the metrics."""
    limits = Limits(
        bytes=settings.max_bytes_in_flight,
        queued=settings.max_queued_requests,
        wait_s=settings.max_queue_ms / 1e3,
    )
    return Admission(limits, metrics.admission)
