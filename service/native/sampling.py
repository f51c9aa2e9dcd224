"""Reads the sampling rates of OpenTelemetry's sampler for the native core, which tells Python of sampled requests.

Source: opentelemetry.io/docs/specs/otel/trace/sdk, the descriptions of the built-in samplers.
"""

from __future__ import annotations

import logging
import re

logger = logging.getLogger(__name__)

_LEAF = r"AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased\{[^{}]*\}"
_PARENT_BASED = re.compile(
    rf"ParentBased\{{root:({_LEAF}),remoteParentSampled:({_LEAF}),remoteParentNotSampled:({_LEAF}),local.*\}}"
)
_NAMES = ("root", "sampled_parent", "unsampled_parent")


def trace_shares(description: str) -> dict[str, float]:
    """Returns the sampling rates in an OpenTelemetry sampler's description, named like the fields of Tracing in
    native/src/edge/sampling.rs.

    For a sampler that the core does not know all rates are 1: the core tells Python of all requests, and the sampler
    decides.

    >>> trace_shares("TraceIdRatioBased{0.25}")
    {'root': 0.25, 'sampled_parent': 0.25, 'unsampled_parent': 0.25}
    """
    if found := _PARENT_BASED.fullmatch(description):
        return dict(zip(_NAMES, map(_share, found.groups()), strict=True))
    if re.fullmatch(_LEAF, description):
        return dict.fromkeys(_NAMES, _share(description))
    extra = {"sampler": description}
    logger.warning("the native core does not know the sampler: it records the spans of all requests", extra=extra)
    return dict.fromkeys(_NAMES, 1.0)


def _share(leaf: str) -> float:
    if leaf.startswith("TraceIdRatioBased"):
        return float(leaf.partition("{")[2].rstrip("}"))
    return float(leaf == "AlwaysOnSampler")
