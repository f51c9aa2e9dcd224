"""An opened artifact answers its lookups, and one whose parts disagree is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.artifact import signature_rules
from service.artifact.manifest import Manifest, SignatureEntry
from service.artifact.signature_def import read_signatures
from service.errors import ArtifactError
from service.tables.backend import open_lookups
from service.types import TableCounts
from tests.core_lookups import CoreLookups, opened
from tests.toy_described import write_described_model
from tests.toy_model import manifest_of, rewrite_manifest, saved_model, toy_signatures, write_toy_model
from tests.toy_policies import write_policy_model

Edit = Callable[[dict[str, Any]], None]


def test_answers_lookups_and_leaves_the_rest(toy_model: Path) -> None:
    lookups = opened(toy_model / "1")
    assert lookups.lookup_names == {"lookup", "lookup_tpu_tensor_core"}
    assert sorted(lookups.signatures) == ["lookup", "lookup_tpu_tensor_core", "serving_default"]


def test_lookup_inputs_are_optional_and_know_their_tables(toy_model: Path) -> None:
    signatures = opened(toy_model / "1").signatures
    lookup = signatures["lookup"]
    assert lookup.kind == "lookup"
    assert lookup.required == frozenset()
    assert lookup.ragged.keys() == {"tags", "tags_sum", "tags_sqrtn"}
    assert lookup.inputs["user"].vocabulary_size == 5
    assert lookup.inputs["user"].vocabulary is None
    assert lookup.inputs["tags__values"].vocabulary_size == 4
    assert lookup.inputs["tags__values"].vocabulary is not None
    assert lookup.inputs["tags__row_splits"].vocabulary_size is None
    assert signatures["lookup_tpu_tensor_core"].inputs["user"].dtype == "int32"


def test_predict_inputs_stay_required_and_know_their_tables(toy_model: Path) -> None:
    predict = opened(toy_model / "1").signatures["serving_default"]
    assert (predict.kind, predict.required) == ("predict", set(predict.inputs))
    assert predict.inputs["user"].vocabulary_size == 5
    assert predict.inputs["tags__values"].vocabulary is not None


def in_lookup(feature: str, **fields: Any) -> Edit:
    """Returns an edit of a feature of the signature `lookup`."""
    return lambda data: data["signatures"]["lookup"]["features"][feature].update(fields)


def test_a_predict_may_read_one_input_by_two_vocabularies(tmp_path: Path) -> None:
    def edit(data: Any) -> None:
        data["signatures"]["serving_default"]["features"]["tags"].update(ids="user", row_splits=None, combiner=None)

    lookups = opened(write_toy_model(tmp_path / "1", edit_manifest=edit))
    user = lookups.signatures["serving_default"].inputs["user"]
    assert (lookups.faults, user.vocabulary, user.bounds) == ({}, None, "none")


def in_vocabulary(**fields: Any) -> Edit:
    """Returns an edit of the manifest that changes fields of the vocabulary."""
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
        (in_lookup("tags", row_splits="tags_sum__row_splits"), "its inputs or outputs are not all described"),
        (in_lookup("tags", ids="user"), "read input 'user' by different vocabularies"),
        (in_lookup("tags", weights="tags_sum__weights"), "its inputs or outputs are not all described"),
        (in_lookup("user", ids="tags__weights"), "input 'tags__weights' is float32, expected int64 or int32"),
        (in_lookup("user", output="u"), "signature 'lookup' has no output 'u'"),
        (
            lambda d: d["signatures"]["lookup"]["features"].pop("user"),
            "signature 'lookup': its inputs or outputs are not all described",
        ),
        (in_vocabulary(first_id=2), r"feature 'tags.*': vocabulary 'tag' reaches id 4 of 4 rows"),
        (in_vocabulary(oov_id=4), "vocabulary 'tag' reaches id 4 of 4 rows"),
    ],
)
def test_each_disagreement_of_a_signature_is_named(tmp_path: Path, edit: Edit, message: str) -> None:
    assert re.search(message, faults_of(write_toy_model(tmp_path / "1", edit_manifest=edit)))


def faults_of(artifact: Path) -> str:
    """Opens an artifact and returns all faults of its signatures; those signatures are left as the SavedModel has them.

    What can still be served is.
    """
    lookups = opened(artifact)
    manifest = Manifest.read(artifact)
    saved = read_signatures(artifact / "saved_model.pb")
    assert manifest is not None
    assert lookups.fitting(manifest).signatures.keys() == manifest.signatures.keys() - lookups.faults.keys()
    assert lookups.lookup_names.isdisjoint(lookups.faults)
    for name in lookups.faults.keys() & saved.keys():
        assert lookups.signatures[name] == saved[name]
    return "; ".join(lookups.faults.values())


def test_a_signature_with_a_fault_takes_no_other_down(tmp_path: Path) -> None:
    lookups = opened(write_toy_model(tmp_path / "1", edit_manifest=in_lookup("user", output="u")))
    assert lookups.faults == {"lookup": "signature 'lookup' has no output 'u', which its manifest names"}
    assert lookups.lookup_names == {"lookup_tpu_tensor_core"}


def test_a_fault_of_a_file_refuses_the_version(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has 3 lines, its manifest says 2"):
        opened(write_toy_model(tmp_path / "1", edit_manifest=in_vocabulary(size=2)))


@pytest.mark.parametrize(
    ("name", "info", "message"),
    [
        ("user", (9, (-1, 1, 1)), "input 'user' is not of rank 1 or 2"),
        ("tags__values", (9, ()), "input 'tags__values' is not of rank 1"),
        ("user", (7, (-1,)), "input 'user' is string, expected int64 or int32"),
        ("tags__values", (1, (-1,)), "input 'tags__values' is float32, expected int64 or int32 or string"),
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
    assert re.search(message, faults_of(artifact))


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ((1, (-1, 4)), r"output 'tags' is float32 \['\?', 4\], its manifest says float32 \['\?', 3\]"),
        ((1, (-1, 2, 3)), r"output 'tags' is float32 \['\?', 2, 3\], its manifest says"),
        ((1, (-1,)), r"output 'tags' is float32 \['\?'\], its manifest says"),
        ((2, (-1, 3)), r"output 'tags' is float64 \['\?', 3\], its manifest says"),
    ],
)
def test_outputs_that_no_kernel_gives_are_refused(
    tmp_path: Path, info: tuple[int, tuple[int, ...]], message: str
) -> None:
    artifact = write_toy_model(tmp_path / "1", edit_manifest=lambda data: data.pop("files"))
    signatures = toy_signatures()
    signatures["lookup"][1]["tags"] = info
    (artifact / "saved_model.pb").write_bytes(saved_model(signatures))
    assert re.search(message, faults_of(artifact))


def test_an_output_of_unknown_rank_gets_the_manifests_shape(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "1")
    signatures = read_signatures(artifact / "saved_model.pb")
    outputs = dict(signatures["lookup"].outputs)
    outputs["tags"] = replace(outputs["tags"], shape=None)
    manifest = manifest_of(artifact)
    described = open_lookups(
        artifact, manifest, signatures | {"lookup": replace(signatures["lookup"], outputs=outputs)}
    )
    assert described.signatures["lookup"].outputs["tags"].shape == (None, 3)


def test_every_kind_of_feature_of_format_2_is_described(tmp_path: Path) -> None:
    lookups = opened(write_policy_model(tmp_path / "1"))
    lookup = lookups.signatures["lookup"]
    takes_keys = {name for name, tensor in lookup.inputs.items() if tensor.takes_keys}
    assert takes_keys == {
        *("word", "words__values", "word_path__values", "code", "codes__values", "strict_code"),
    }
    takes_strings = {name for name, tensor in lookup.inputs.items() if tensor.takes_strings}
    assert takes_strings == {"word", "words__values", "words_or_rows__values", "word_path__values"}
    assert lookup.inputs["words__values"].dtype == "string"
    assert {name: lookup.outputs[name].shape for name in ("words", "path", "word_path")} == {
        "words": (None, 2),
        "path": (None, 2, 3),
        "word_path": (None, 3, 2),
    }


def test_predicts_check_what_their_graph_has_no_policy_for(tmp_path: Path) -> None:
    predict = opened(write_policy_model(tmp_path / "1")).signatures["serving_default"]
    assert predict.inputs["drop_negative__values"].bounds == "upper"
    assert predict.inputs["drop_negative__values"].vocabulary_size == 4
    assert {name for name, tensor in predict.inputs.items() if tensor.takes_keys} == {
        *("words__values", "codes__values", "code"),
    }


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [("error", "both"), ("drop_negative", "upper"), ("drop", "none"), ("clamp", "none"), ("default_row", "none")],
)
def test_bounds_follow_the_policy(tmp_path: Path, policy: str, bounds: str) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["signatures"]["serving_default"]["features"]["user"]["on_bad_id"] = policy

    predict = opened(write_toy_model(tmp_path / "1", edit_manifest=edit)).signatures["serving_default"]
    assert predict.inputs["user"].bounds == bounds


@pytest.mark.parametrize(
    ("fields", "bounds"),
    [
        ({"on_nonpositive_weight": "keep"}, "both"),
        ({"on_nonpositive_weight": "drop"}, "none"),
        ({"max_sequence_length": 2}, "none"),
        ({"max_ids_per_row": 2, "on_too_many_ids": "truncate"}, "none"),
        ({"max_ids_per_row": 2, "on_too_many_ids": "error"}, "both"),
    ],
)
def test_ids_that_are_not_looked_up_are_not_checked(toy_model: Path, fields: dict[str, Any], bounds: str) -> None:
    folder = toy_model / "1"
    spec, manifest = read_signatures(folder / "saved_model.pb")["lookup"], manifest_of(folder)
    tags = manifest.signatures["lookup"].features["tags"]
    tags = replace(tags, output=None, **{"on_nonpositive_weight": "keep"} | fields)
    predict = signature_rules.described(spec, SignatureEntry("predict", {"tags": tags}), manifest, {})
    assert predict.inputs["tags__values"].bounds == bounds


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("words", {"num_oov_buckets": 7}, "feature 'words': vocabulary 'words' reaches id 9 of 9 rows"),
        ("codes", {"first_id": 5}, "feature 'codes': vocabulary 'codes' reaches id 9 of 9 rows"),
        (
            "words",
            {"key_dtype": "int64", "file": "assets/codes.txt"},
            "'words__values' is string, expected int64 or int32",
        ),
    ],
)
def test_vocabularies_that_do_not_fit_are_named(
    tmp_path: Path, name: str, fields: dict[str, Any], message: str
) -> None:
    artifact = write_policy_model(tmp_path / "1")
    rewrite_manifest(artifact, lambda data: data["vocabularies"][name].update(fields))
    assert re.search(message, faults_of(artifact))


def test_a_vocabulary_of_strings_is_none_of_integers(tmp_path: Path) -> None:
    artifact = write_policy_model(tmp_path / "1")
    rewrite_manifest(artifact, lambda data: data["vocabularies"]["word"].update(key_dtype="int64"))
    with pytest.raises(ArtifactError, match=r"words\.txt: line 1 is 'red', expected an int64"):
        opened(artifact)


def test_a_predict_may_take_ids_of_another_rank(tmp_path: Path) -> None:
    artifact = write_toy_model(tmp_path / "1", edit_manifest=lambda data: data.pop("files"))
    signatures = toy_signatures()
    signatures["serving_default"][0]["user"] = (9, (-1, 1))
    (artifact / "saved_model.pb").write_bytes(saved_model(signatures))
    assert opened(artifact).signatures["serving_default"].inputs["user"].shape == (None, 1)


def counts(core: CoreLookups) -> dict[str, TableCounts]:
    """Returns what the core has counted for each table."""
    return core.described.table_counts(core.servable.counts(), core.servable.unknown_keys())


def test_counts_by_table_what_all_signatures_read(tmp_path: Path) -> None:
    core = CoreLookups(write_policy_model(tmp_path / "1"))
    # Two words are known and two unknown: one of the unknown goes to a bucket; the other is dropped and counts as
    # missing.
    for name in ("words", "words_or_rows"):
        words = {f"{name}__values": np.array([b"red", b"?"], object), f"{name}__row_splits": np.array([0, 2])}
        core.predict("lookup", words)
    core.predict("lookup", {"one_clamp": np.array([-7, 1])})
    clamped = {"clamp__values": np.array([9]), "clamp__row_splits": np.array([0, 1])}
    core.predict("lookup_tpu_tensor_core", clamped)
    # A row of table `item` has 8 bytes, a row of table `tag` 12.
    assert counts(core) == {"item": TableCounts(4, 1, 2, 24), "tag": TableCounts(3, 2, 0, 36)}


def test_features_of_different_tables_count_unknown_keys_apart(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["features"]["user"]["vocabulary"] = "tag"

    core = CoreLookups(write_toy_model(tmp_path / "1", edit_manifest=edit))
    word, splits = np.array([b"?"], object), np.array([0, 1])
    core.predict("lookup", {"user": word})
    for name in ("tags", "tags_sum"):
        core.predict("lookup", {f"{name}__values": word, f"{name}__row_splits": splits})
    assert {name: count.oov_keys for name, count in counts(core).items()} == {"user": 1, "tag": 2}


def test_hashed_keys_are_not_unknown(tmp_path: Path) -> None:
    core = CoreLookups(write_described_model(tmp_path / "1"))
    core.predict("hashed", {"word": np.array([b"a", b"b"], object)})
    assert not any(count.oov_keys for count in counts(core).values())
