"""Makes a VocabularySpec of a list of keys, a Keras lookup layer, or another VocabularySpec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model_export.errors import ExportError
from model_export.spec.features import VocabularySpec
from model_export.tensorflow_setup import tf

# The forms of a vocabulary: a VocabularySpec, a sequence of keys (key i is row i), or a StringLookup or IntegerLookup
# layer.
Vocabulary = VocabularySpec | Sequence[str] | Sequence[int] | Any


def vocabulary_spec(feature: str, vocabulary: Vocabulary) -> VocabularySpec:
    """Returns the VocabularySpec for a feature, made from a list of keys or a Keras lookup layer.

    With a list of keys any other key is an error. With a Keras lookup layer the row of unknown keys (num_oov_indices=1)
    becomes oov_id; with num_oov_indices=0 an unknown key is an error.

    Raises:
      ExportError: a VocabularySpec can not describe the layer (a mask, several unknown rows, one-hot output).
    """
    if isinstance(vocabulary, VocabularySpec):
        return vocabulary
    lookups = (tf.keras.layers.StringLookup, tf.keras.layers.IntegerLookup)
    if isinstance(vocabulary, lookups):
        return _of_layer(feature, vocabulary)
    try:
        return VocabularySpec(tuple(vocabulary))
    except (TypeError, ValueError) as error:
        raise ExportError(f"vocabulary of feature {feature!r}: {error}") from error


def _of_layer(feature: str, layer: Any) -> VocabularySpec:
    config = layer.get_config()
    refused = {"mask_token": (None,), "num_oov_indices": (0, 1), "output_mode": ("int",), "invert": (False,)}
    for field, allowed in refused.items():
        if config[field] not in allowed:
            raise ExportError(
                f"vocabulary of feature {feature!r}: {field}={config[field]!r}, a lookup can say only "
                f"{' or '.join(map(repr, allowed))}"
            )
    first = config["num_oov_indices"]
    keys = layer.get_vocabulary(include_special_tokens=False)
    words: Any = tuple(int(key) if isinstance(layer, tf.keras.layers.IntegerLookup) else str(key) for key in keys)
    try:
        return VocabularySpec(words, first_id=first, oov_id=0 if first else None)
    except ValueError as error:
        raise ExportError(f"vocabulary of feature {feature!r}: {error}") from error
