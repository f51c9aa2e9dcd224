"""What a client learns about a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.core.types import ragged_features


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """One input or output.

    dtype: numpy's name, or "string".
    shape: None where the rank is unknown; None within it where a size is.
    """

    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class SignatureDescription:
    """A named callable of a model."""

    method_name: str
    inputs: Mapping[str, TensorDescription]
    outputs: Mapping[str, TensorDescription]

    @property
    def ragged(self) -> frozenset[str]:
        """Features to be given as RaggedIds or as one list per row."""
        return frozenset(names.feature for names in ragged_features(self.inputs))


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The signatures of one version of a model, by name."""

    model: str
    version: int
    signatures: Mapping[str, SignatureDescription]
