"""The native core samples by the rates of OpenTelemetry's samplers, and takes all requests for an unknown one."""

from __future__ import annotations

import pytest

from service.native.edge import trace_shares

sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
ratio = sampling.TraceIdRatioBased


@pytest.mark.parametrize(
    ("sampler", "shares"),
    [
        (sampling.ALWAYS_ON, (1, 1, 1)),
        (sampling.ALWAYS_OFF, (0, 0, 0)),
        (ratio(1e-05), (1e-05, 1e-05, 1e-05)),
        (sampling.DEFAULT_ON, (1, 1, 0)),
        (sampling.DEFAULT_OFF, (0, 1, 0)),
        (sampling.ParentBasedTraceIdRatio(0.01), (0.01, 1, 0)),
        (sampling.ParentBased(ratio(0.5), remote_parent_not_sampled=ratio(0.25)), (0.5, 1, 0.25)),
        (sampling.ParentBased(sampling.DEFAULT_OFF), (1, 1, 1)),
        (sampling.AlwaysRecordSampler(sampling.ALWAYS_OFF), (1, 1, 1)),
    ],
    ids=lambda value: getattr(value, "get_description", str)(),
)
def test_shares_are_the_samplers(sampler: object, shares: tuple[float, ...]) -> None:
    described = sampler.get_description()  # type: ignore[attr-defined]
    assert tuple(trace_shares(described).values()) == shares


def test_a_trace_has_the_id_that_the_core_drew() -> None:
    from service.observe.otel import DrawnIds

    ids = DrawnIds()
    ids.trace_id.set(7)
    assert ids.generate_trace_id() == 7
    ids.trace_id.set(0)
    assert ids.generate_trace_id() not in (0, 7, ids.generate_trace_id())
