"""The native core samples by the rates of OpenTelemetry's samplers, and forwards all requests of an unknown one."""

from __future__ import annotations

import pytest

from service.engine import request_context
from service.engine.recording import Draw
from service.native.sampling import trace_shares

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


def test_a_request_that_the_core_has_drawn_is_not_drawn_again() -> None:
    draw = Draw(0.5, lambda: pytest.fail("a second draw"))
    for number, is_chosen in ((0.0, True), (0.49, True), (0.5, False), (0.9, False)):
        request_context.enter(b"", drawn=request_context.Draws(log=number))
        assert draw.is_chosen() == is_chosen
    request_context.enter(b"")
    assert Draw(0.5, lambda: 0.4).is_chosen() and not Draw(0.5, lambda: 0.6).is_chosen()


def test_a_trace_has_the_id_that_the_core_drew() -> None:
    from service.observe.otel import DrawnIds

    ids = DrawnIds()
    request_context.enter(b"", drawn=request_context.Draws(trace_id=7))
    assert ids.generate_trace_id() == 7
    request_context.enter(b"")
    assert ids.generate_trace_id() not in (0, 7, ids.generate_trace_id())
