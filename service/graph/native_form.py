"""Declares the description of a predict signature's graph for the native core, without opening graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.tables.plan import FeaturePlan


@dataclass(frozen=True, slots=True)
class NativeGraph:
    """A predict signature's graph in the native core's form. Inputs and outputs are numbered as in the SignatureSpec.

    features: the lookups, by position.
    document: the description that native/src/towers/description.rs reads.
    computed: tensors of ids that the graph computes; features name them as their ids inputs.
    """

    features: tuple[FeaturePlan, ...]
    document: Mapping[str, Any]
    computed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PythonOnly:
    """The mark of a predict signature that the native core can not run. reason: why, in one line."""

    reason: str
