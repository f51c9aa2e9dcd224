"""Sample requests fit the signature that the server describes."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.model_samples import PREDICT_METHOD_NAME, ServedModel, Signature

LOOKUP = Signature(
    "lookup",
    PREDICT_METHOD_NAME,
    {
        "tags__row_splits": ("DT_INT64", (-1,)),
        "tags__values": ("DT_STRING", (-1,)),
        "tags__weights": ("DT_FLOAT", (-1,)),
        "user": ("DT_INT32", (-1,)),
    },
)
DENSE = Signature("serving_default", PREDICT_METHOD_NAME, {"x": ("DT_FLOAT", (-1, 3)), "b": ("DT_BOOL", ())})
EXAMPLES = Signature("regress", "tensorflow/serving/regress", {"examples": ("DT_STRING", (-1,))})


def test_ragged_tensors_agree_with_each_other() -> None:
    tensors = LOOKUP.tensors()
    assert tensors["tags__row_splits"].tolist() == [0, 2, 3]
    assert tensors["tags__values"].tolist() == [b"a", b"b", b"c"]
    assert len(tensors["tags__weights"]) == 3
    assert len(tensors["user"]) == 2


def test_columns_are_the_same_rows_without_the_ragged_form() -> None:
    columns = LOOKUP.columns()
    assert set(columns) == {"tags", "user"}
    assert [len(row) for row in columns["tags"]] == [2, 1]
    assert sum(columns["tags"], []) == [text.decode() for text in LOOKUP.tensors()["tags__values"]]


def test_open_sizes_are_filled_in() -> None:
    tensors = DENSE.tensors()
    assert (tensors["x"].shape, tensors["x"].dtype) == ((2, 3), np.float32)
    assert (tensors["b"].shape, tensors["b"].dtype) == ((), np.bool_)


def test_a_dtype_that_no_sample_is_known_for_is_named() -> None:
    with pytest.raises(ValueError, match="'x' of DT_QINT8"):
        Signature("s", PREDICT_METHOD_NAME, {"x": ("DT_QINT8", (-1,))}).tensors()


def test_signatures_are_sorted_by_how_they_are_called() -> None:
    model = ServedModel("m", 1, (LOOKUP, DENSE, EXAMPLES), {})
    assert model.predicted() == (LOOKUP, DENSE)
    assert model.lookups() == (LOOKUP,)
    assert model.of_method("regress") == (EXAMPLES,)
    assert model.of_method("classify") == ()


def test_only_the_signatures_that_are_wanted_are_called() -> None:
    model = ServedModel("m", 1, (LOOKUP, DENSE, EXAMPLES), {}, frozenset({"serving_default"}))
    assert model.predicted() == (DENSE,)
    assert model.lookups() == model.of_method("regress") == ()
    assert len(model.signatures) == 3
