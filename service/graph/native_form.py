"""Declares the form in which the native core gets the description of a predict signature's graph; opens no graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.tables.plan import FeaturePlan
from service.types import Vocabulary


@dataclass(frozen=True, slots=True)
class NativeGraph:
    """A predict signature's graph in the native core's form. Inputs and outputs are numbered as in the SignatureSpec.

    features: the lookups, by position.
    document: the description that native/src/towers/description.rs reads.
    computed: tensors of ids that the graph computes; features name them as their ids inputs.
    vocabularies: position of a feature -> the vocabulary that maps the keys in its input to ids.
    opener: opens the graph at the first request for it, and returns its document as JSON; None: document is complete.
    """

    features: tuple[FeaturePlan, ...]
    document: Mapping[str, Any]
    computed: tuple[str, ...] = ()
    vocabularies: Mapping[int, Vocabulary] = field(default_factory=dict)
    opener: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True)
class PythonOnly:
    """A result that says that the native core can not run a signature's graph, so that no request can.

    reason: why, in one line.
    """

    reason: str
