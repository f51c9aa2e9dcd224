"""Builds Keras 3 models that take strings or keys, which StringLookup, IntegerLookup or Hashing maps to rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.foreign.keras3_models import keras3
from loadtest.foreign.kinds import Ids, Keys, Words, vocabulary
from loadtest.foreign.models import ZOO, Rows

_WORDS = 800


def _export(keyed: Callable[[Any, Rows], Any], dtype: str, folder: Path, rows: Rows, *, has_tower: bool) -> None:
    keras = keras3()
    word = keras.Input((), dtype=dtype, name="word")
    # Each of the lookup layers below gives at most rows(_WORDS) + 20 different ids: one for each key, OOV bucket and
    # mask.
    vectors = keras.layers.Embedding(rows(_WORDS) + 20, 8)(keyed(keras, rows)(word))
    outputs = keras.layers.Dense(3, activation="tanh")(vectors) if has_tower else vectors
    keras.Model({"word": word}, {"answer": outputs}).export(str(folder), verbose=False)


def _add(name: str, keyed: Callable[[Any, Rows], Any], *, dtype: str = "string") -> None:
    inputs = {"word": Words("word", _WORDS) if dtype == "string" else Keys(_WORDS)}
    for has_tower in (False, True):

        def build(folder: Path, rows: Rows, has_tower: bool = has_tower) -> None:
            _export(keyed, dtype, folder, rows, has_tower=has_tower)

        ZOO.add(f"keras3_{name}{'_tower' if has_tower else ''}", inputs, build)


_add("string_lookup", lambda k, rows: k.layers.StringLookup(vocabulary=vocabulary("word", rows(_WORDS))))
_add(
    "string_lookup_buckets",
    lambda k, rows: k.layers.StringLookup(
        vocabulary=vocabulary("word", rows(_WORDS)), num_oov_indices=5, mask_token=""
    ),
)
_add(
    "integer_lookup",
    lambda k, rows: k.layers.IntegerLookup(vocabulary=[10 * (i + 1) for i in range(rows(_WORDS))]),
    dtype="int64",
)
_add(
    "integer_lookup_buckets",
    lambda k, rows: k.layers.IntegerLookup(
        vocabulary=[10 * (i + 1) for i in range(rows(_WORDS))], num_oov_indices=4, mask_token=0
    ),
    dtype="int64",
)
_add("hashing", lambda k, rows: k.layers.Hashing(num_bins=rows(_WORDS)))
_add("hashing_salted", lambda k, rows: k.layers.Hashing(num_bins=rows(_WORDS), salt=[133, 137]))
_add("hashing_mask", lambda k, rows: k.layers.Hashing(num_bins=rows(_WORDS), mask_value=""))
_add("hashing_of_integers", lambda k, rows: k.layers.Hashing(num_bins=rows(_WORDS)), dtype="int64")


@ZOO.foreign({"words": Words("word", _WORDS), "item": Ids(1000)})
def keras3_mean_of_words(folder: Path, rows: Rows) -> None:
    """Builds a model with a dense layer over the mean of rows of strings [B, K], "" as padding, and an item's row."""
    keras = keras3()
    words = keras.Input((None,), dtype="string", name="words")
    item = keras.Input((), dtype="int64", name="item")
    lookup = keras.layers.StringLookup(vocabulary=vocabulary("word", rows(_WORDS)), mask_token="")
    vectors = keras.layers.Embedding(rows(_WORDS) + 2, 8, mask_zero=True)(lookup(words))
    mean = keras.layers.GlobalAveragePooling1D()(vectors)
    joined = keras.layers.Concatenate()([mean, keras.layers.Embedding(rows(1000), 8)(item)])
    keras.Model({"words": words, "item": item}, keras.layers.Dense(1)(joined)).export(str(folder), verbose=False)
