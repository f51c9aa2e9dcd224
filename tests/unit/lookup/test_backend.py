"""An opened artifact answers its lookups, and one whose parts disagree is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.codecs.signature_def import read_signatures
from service.core.errors import ArtifactError
from service.core.manifest import Manifest
from service.lookup.backend import OpenedLookups, open_lookups
from tests.toy_model import saved_model, toy_signatures, write_toy_model

Edit = Callable[[dict[str, Any]], None]


def open_toy(artifact: Path) -> OpenedLookups:
    """Opens an artifact as the loader does."""
    manifest = Manifest.read(artifact)
    assert manifest is not None
    return open_lookups(artifact, manifest, read_signatures(artifact / "saved_model.pb"))


def test_answers_lookups_and_leaves_the_rest(toy_model: Path) -> None:
    opened = open_toy(toy_model / "1")
    assert opened.lookup_names == {"lookup", "lookup_tpu_tensor_core"}
    assert sorted(opened.signatures) == ["lookup", "lookup_tpu_tensor_core", "serving_default"]
    outputs = opened.backend.run("lookup", {"user": np.array([4, 0])}, ("user", "tags"))
    assert {name: array.tolist() for name, array in outputs.items()} == {"user": [[4, 40], [0, 0]]}
    opened.backend.close()


def test_lookup_inputs_are_optional_and_know_their_tables(toy_model: Path) -> None:
    signatures = open_toy(toy_model / "1").signatures
    lookup = signatures["lookup"]
    assert lookup.kind == "lookup"
    assert lookup.required == frozenset()
    assert lookup.ragged == {"tags", "tags_sum", "tags_sqrtn"}
    assert lookup.inputs["user"].vocabulary_size == 5
    assert lookup.inputs["user"].vocabulary is None
    assert lookup.inputs["tags__values"].vocabulary_size == 4
    assert lookup.inputs["tags__values"].vocabulary is not None
    assert lookup.inputs["tags__row_splits"].vocabulary_size is None
    assert signatures["lookup_tpu_tensor_core"].inputs["user"].dtype == "int32"


def test_predict_inputs_stay_required_and_know_their_tables(toy_model: Path) -> None:
    predict = open_toy(toy_model / "1").signatures["serving_default"]
    assert (predict.kind, predict.required) == ("predict", set(predict.inputs))
    assert predict.inputs["user"].vocabulary_size == 5
    assert predict.inputs["tags__values"].vocabulary is not None


def in_lookup(feature: str, **fields: Any) -> Edit:
    """Returns an edit of a feature of the signature `lookup`."""
    return lambda data: data["signatures"]["lookup"]["features"][feature].update(fields)


def in_vocabulary(**fields: Any) -> Edit:
    """Returns an edit of the vocabulary."""
    return lambda data: data["vocabularies"]["tag"].update(fields)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda d: d["signatures"].update(x={"kind": "predict", "features": {}}),
            "signature 'x', which saved_model.pb",
        ),
        (in_lookup("user", ids="u"), "signature 'lookup' has no input 'u', which its manifest names"),
        (in_lookup("tags", weights="w"), "signature 'lookup' has no input 'w'"),
        (in_lookup("tags", row_splits="r"), "signature 'lookup' has no input 'r'"),
        (
            in_lookup("tags", row_splits="tags_sum__row_splits"),
            "ragged input 'tags_sum__row_splits' must be named 'tags__row_splits'",
        ),
        (in_lookup("tags", ids="user"), "ragged input 'user' must be named 'user__values'"),
        (in_lookup("tags", weights="tags_sum__weights"), "'tags_sum__weights' must be named 'tags__weights'"),
        (in_lookup("user", ids="tags__weights"), "input 'tags__weights' is float32, expected int64 or int32"),
        (in_lookup("user", output="u"), "signature 'lookup' has no output 'u'"),
        (
            lambda d: d["signatures"]["lookup"]["features"].pop("user"),
            "signature 'lookup': its inputs or outputs are not all described",
        ),
        (in_vocabulary(first_id=2), r"feature 'tags.*': vocabulary 'tag' reaches id 4 of 4 rows"),
        (in_vocabulary(oov_id=4), "vocabulary 'tag' reaches id 4 of 4 rows"),
        (in_vocabulary(size=2), "has 3 lines, its manifest says 2"),
    ],
)
def test_each_disagreement_is_named(tmp_path: Path, edit: Edit, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        open_toy(write_toy_model(tmp_path / "1", edit_manifest=edit))


@pytest.mark.parametrize(
    ("name", "info", "message"),
    [
        ("user", (9, (-1, 1)), "input 'user' is not of rank 1"),
        ("tags__values", (9, ()), "input 'tags__values' is not of rank 1"),
        ("tags__values", (7, (-1,)), "input 'tags__values' is string, expected int64 or int32"),
        ("tags__row_splits", (1, (-1,)), "input 'tags__row_splits' is float32, expected int64 or int32"),
        ("tags__weights", (2, (-1,)), "input 'tags__weights' is float64, expected float32"),
    ],
)
def test_inputs_that_no_kernel_takes_are_refused(
    tmp_path: Path, name: str, info: tuple[int, tuple[int, ...]], message: str
) -> None:
    artifact = write_toy_model(tmp_path / "1", edit_manifest=lambda data: data.pop("files"))
    signatures = toy_signatures()
    signatures["lookup"][0][name] = info
    (artifact / "saved_model.pb").write_bytes(saved_model(signatures))
    with pytest.raises(ArtifactError, match=message):
        open_toy(artifact)


def test_a_predict_may_take_ids_of_another_rank(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "1", edit_manifest=lambda data: data.pop("files"))
    signatures = toy_signatures()
    signatures["serving_default"][0]["user"] = (9, (-1, 1))
    (artifact / "saved_model.pb").write_bytes(saved_model(signatures))
    assert open_toy(artifact).signatures["serving_default"].inputs["user"].shape == (None, 1)
