"""Builds the signatures against which the JSON tests decode bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from service.types import Array, SignatureKind, SignatureSpec, TensorSpec, ragged_features


@dataclass(frozen=True)
class Keys:
    """A vocabulary without keys, because the codec never maps keys to rows."""

    key_dtype: Literal["string", "int64"] = "string"
    example_key: bytes | int = b"red"

    def ids_of(self, keys: Array, input_name: str) -> Array:
        """Returns 0 for every key; no test reads these rows."""
        return np.zeros(len(keys), np.int64)


def spec(*inputs: TensorSpec, kind: SignatureKind = "predict", outputs: Sequence[TensorSpec] = ()) -> SignatureSpec:
    """Returns a signature with these inputs; features are ragged by the names of their inputs."""
    by_name = {tensor.name: tensor for tensor in inputs}
    return SignatureSpec("s", kind, "", by_name, {t.name: t for t in outputs}, ragged_features(by_name))


def vector(name: str, dtype: str = "int64", *, is_optional: bool = False, vocabulary: Keys | None = None) -> TensorSpec:
    """Returns the spec of an input of rank 1."""
    return TensorSpec(name, dtype, (None,), is_optional=is_optional, vocabulary=vocabulary)


def ragged(
    feature: str, dtype: str = "int64", *, has_vocabulary: bool = False
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Returns the specs of a ragged feature's three inputs, of which the weights are optional."""
    return (
        vector(f"{feature}__values", dtype, vocabulary=Keys() if has_vocabulary else None),
        vector(f"{feature}__row_splits"),
        vector(f"{feature}__weights", "float32", is_optional=True),
    )


LOOKUP = spec(vector("user"), *ragged("tags", has_vocabulary=True), *ragged("films"), kind="lookup")
