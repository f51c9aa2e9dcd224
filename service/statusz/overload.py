"""What of a server's limits is taken, and what it refused, by model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.core.admission.admission import Held
from service.core.admission.limits import Limits
from service.metrics.admission import AdmissionCounter
from service.statusz.collect import quantile_ms


def overload(held: Mapping[str, Held], limits: Limits, counted: AdmissionCounter) -> dict[str, Any]:
    """Returns the document; counts are since the start. held: what is in flight in Python now."""
    held = counted.in_flight(held)
    refused, waits = counted.refusals(), counted.waits()
    models = sorted(held.keys() | waits.keys() | {model for model, _ in refused})
    return {
        "limits": {"bytes": limits.bytes, "rows": limits.rows, "queued": limits.queued, "wait_ms": limits.wait_s * 1e3},
        "models": [
            {
                "model": model,
                "in_flight_bytes": held[model].bytes if model in held else 0,
                "in_flight_rows": held[model].rows if model in held else 0,
                "refused": {reason: count for (name, reason), count in sorted(refused.items()) if name == model},
                "p99_thread_wait_ms": quantile_ms(waits[model], 0.99) if model in waits else None,
            }
            for model in models
        ],
        "connections_dropped": counted.dropped(),
    }
