"""Vocabularies from lists and from Keras lookup layers map keys as the layers themselves do."""

from __future__ import annotations

from typing import Any

import pytest

from model_export.errors import ExportError
from model_export.spec.features import VocabularySpec
from tests.unit.model_export.layers.late import Late, tf

pytestmark = pytest.mark.tf

vocabulary_spec = Late("model_export.layers.to_spec", "vocabulary_spec")
layers = Late("model_export.tensorflow_setup", "tf.keras.layers")


def test_the_first_key_of_a_list_is_row_0() -> None:
    assert vocabulary_spec("f", ["a", "b"]) == VocabularySpec(("a", "b"))
    assert vocabulary_spec("f", (7, 5)) == VocabularySpec((7, 5))


def test_a_spec_is_taken_as_it_is() -> None:
    spec = VocabularySpec(("a",), first_id=2)
    assert vocabulary_spec("f", spec) is spec


@pytest.mark.parametrize(
    ("make", "keys", "stranger"),
    [
        (lambda: layers.StringLookup(vocabulary=["x", "y"]), ["x", "y"], "z"),
        (lambda: layers.IntegerLookup(vocabulary=[30, 10]), [30, 10], 20),
    ],
    ids=["strings", "integers"],
)
def test_a_lookup_layer_is_read_as_it_maps(make: Any, keys: list[Any], stranger: Any) -> None:
    layer = make()
    spec = vocabulary_spec("f", layer)
    assert list(spec.keys) == keys
    rows = layer(tf.constant([*keys, stranger])).numpy().tolist()
    assert rows == [spec.first_id, spec.first_id + 1, spec.oov_id]


def test_a_lookup_layer_without_room_for_others_makes_them_errors() -> None:
    layer = layers.StringLookup(vocabulary=["x", "y"], num_oov_indices=0)
    assert vocabulary_spec("f", layer) == VocabularySpec(("x", "y"), on_oov="error")
    assert layer(tf.constant(["y"])).numpy().tolist() == [1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.StringLookup(vocabulary=["x"], num_oov_indices=3), "num_oov_indices=3, a lookup can say only"),
        (lambda: layers.StringLookup(vocabulary=["x"], mask_token=""), "mask_token=''"),
        (lambda: layers.StringLookup(vocabulary=["x"], output_mode="multi_hot"), "output_mode='multi_hot'"),
        (lambda: layers.StringLookup(vocabulary=["x"], invert=True), "invert=True"),
        (lambda: ["a", "a"], "rows 0 and 1 have the same key 'a'"),
        (lambda: ["a", 1], "all strings or all integers"),
        (lambda: 3, "vocabulary of feature 'f'"),
    ],
    ids=["buckets", "mask", "mode", "invert", "twice", "mixed", "number"],
)
def test_what_a_lookup_can_not_say_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        vocabulary_spec("f", make())
