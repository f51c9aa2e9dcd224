"""The graph of a predict in the form that the native core runs. It imports nothing that opens graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.tables.plan import FeaturePlan


@dataclass(frozen=True, slots=True)
class NativeGraph:
    """The graph of one predict. Numbers of inputs and outputs are places in those of its SignatureSpec.

    features: what is looked up, by number.
    document: as native/src/towers/description.rs reads it.
    computed: tensors of ids that the graph works out; features name them as their ids inputs.
    """

    features: tuple[FeaturePlan, ...]
    document: Mapping[str, Any]
    computed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonOnly:
    """A predict that the native core can not run. reason: why, in one line."""

    reason: str
