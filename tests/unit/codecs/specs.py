"""Signatures that the JSON tests decode against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.types import Array, SignatureKind, SignatureSpec, TensorSpec, ragged_features


class Colours:
    """A vocabulary: it only has to be there, as strings stay strings in the codec."""

    def ids_of(self, strings: Array, input_name: str) -> Array:
        """Maps nothing."""
        return np.zeros(len(strings), np.int64)


def spec(*inputs: TensorSpec, kind: SignatureKind = "predict", outputs: Sequence[TensorSpec] = ()) -> SignatureSpec:
    """Returns a signature of these inputs; ragged features are found by their names."""
    by_name = {tensor.name: tensor for tensor in inputs}
    return SignatureSpec("s", kind, "", by_name, {t.name: t for t in outputs}, ragged_features(by_name))


def vector(name: str, dtype: str = "int64", *, is_optional: bool = False, has_vocabulary: bool = False) -> TensorSpec:
    """Returns an input of rank 1."""
    vocabulary = Colours() if has_vocabulary else None
    return TensorSpec(name, dtype, (None,), is_optional=is_optional, vocabulary=vocabulary)


def ragged(feature: str, *, has_vocabulary: bool = False) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Returns the three inputs of a ragged feature, weights optional."""
    return (
        vector(f"{feature}__values", has_vocabulary=has_vocabulary),
        vector(f"{feature}__row_splits"),
        vector(f"{feature}__weights", "float32", is_optional=True),
    )


LOOKUP = spec(vector("user"), *ragged("tags", has_vocabulary=True), *ragged("films"), kind="lookup")
