"""Reads the signatures of SavedModels, and writes them as metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import text_format

from service.artifact.protos import message_class
from service.artifact.signature_def import encode_metadata, metadata_json, read_signatures
from service.errors import ArtifactError
from tests.toy_model import saved_model

_SIGNATURES = {"s": ({"x": (1, (-1, 3)), "names": (7, ())}, {"y": (9, (-1,))})}


@pytest.fixture
def saved_model_pb(tmp_path: Path) -> Path:
    path = tmp_path / "saved_model.pb"
    path.write_bytes(saved_model(_SIGNATURES))
    return path


def _edited(path: Path, edit: object) -> Path:
    message = message_class("tensorflow.SavedModel").FromString(path.read_bytes())
    edit(message.meta_graphs[0])  # type: ignore[operator]
    path.write_bytes(message.SerializeToString())
    return path


def test_shapes_dtypes_and_names_are_read(saved_model_pb: Path) -> None:
    (signature,) = read_signatures(saved_model_pb).values()
    assert (signature.name, signature.kind, signature.method_name) == ("s", "predict", "tensorflow/serving/predict")
    x, names, y = signature.inputs["x"], signature.inputs["names"], signature.outputs["y"]
    assert (x.dtype, x.shape, x.tensor_name, x.is_optional) == ("float32", (None, 3), "s_x:0", False)
    assert (names.dtype, names.shape) == ("string", ())
    assert (y.dtype, y.shape) == ("int64", (None,))


def test_a_signature_tells_its_definition_as_text(saved_model_pb: Path) -> None:
    (signature,) = read_signatures(saved_model_pb).values()
    message = message_class("tensorflow.SavedModel").FromString(saved_model_pb.read_bytes())
    written = message_class("tensorflow.SignatureDef")()
    text_format.Parse(signature.definition(), written)
    assert written == message.meta_graphs[0].signature_def["s"]


def test_an_unknown_rank_is_none(saved_model_pb: Path) -> None:
    def edit(meta_graph: object) -> None:
        meta_graph.signature_def["s"].inputs["x"].tensor_shape.unknown_rank = True  # type: ignore[attr-defined]

    assert read_signatures(_edited(saved_model_pb, edit))["s"].inputs["x"].shape is None


def test_an_input_with_a_default_is_optional(saved_model_pb: Path) -> None:
    def edit(meta_graph: object) -> None:
        meta_graph.signature_def["s"].defaults["x"].dtype = 1  # type: ignore[attr-defined]

    inputs = read_signatures(_edited(saved_model_pb, edit))["s"].inputs
    assert inputs["x"].is_optional and not inputs["names"].is_optional


def test_the_initialiser_is_listed_as_tensorflow_serving_does(saved_model_pb: Path) -> None:
    def edit(meta_graph: object) -> None:
        meta_graph.signature_def["__saved_model_init_op"].method_name = ""  # type: ignore[attr-defined]

    assert list(read_signatures(_edited(saved_model_pb, edit))) == ["__saved_model_init_op", "s"]


def test_ragged_features_are_found_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "saved_model.pb"
    path.write_bytes(saved_model({"s": ({"g__values": (9, (-1,)), "g__row_splits": (9, (-1,))}, {})}))
    assert read_signatures(path)["s"].ragged.keys() == {"g"}


def test_tags_choose_the_meta_graph_and_a_wrong_one_lists_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "saved_model.pb"
    both = message_class("tensorflow.SavedModel").FromString(saved_model({"cpu": ({}, {})}))
    both.MergeFromString(saved_model({"tpu": ({}, {})}, tags=("serve", "tpu")))
    path.write_bytes(both.SerializeToString())
    assert list(read_signatures(path)) == ["cpu"]
    assert list(read_signatures(path, frozenset({"serve", "tpu"}))) == ["tpu"]
    with pytest.raises(ArtifactError, match=r"no meta graph tagged \{gpu\}. Tags it has: \{serve\}; \{serve, tpu\}"):
        read_signatures(path, frozenset({"gpu"}))


@pytest.mark.parametrize(
    ("data", "problem"), [(None, "cannot read"), (b"\xff", "not a SavedModel"), (b"", "no meta graph")]
)
def test_a_bad_file_is_an_artifact_error_that_names_it(tmp_path: Path, data: bytes | None, problem: str) -> None:
    path = tmp_path / "saved_model.pb"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ArtifactError, match=problem) as caught:
        read_signatures(path)
    assert str(path) in caught.value.message


def test_metadata_goes_round(saved_model_pb: Path) -> None:
    signatures = read_signatures(saved_model_pb)
    response = message_class("tensorflow.serving.GetModelMetadataResponse").FromString(
        encode_metadata("m", 7, signatures)
    )
    assert (response.model_spec.name, response.model_spec.version.value) == ("m", 7)
    assert response.model_spec.signature_name == ""
    packed = response.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    original = message_class("tensorflow.SavedModel").FromString(saved_model_pb.read_bytes()).meta_graphs[0]
    signature_map = message_class("tensorflow.serving.SignatureDefMap").FromString(packed.value)
    # The answer has an empty shape for a scalar, which the toy model's file leaves out.
    original.signature_def["s"].inputs["names"].tensor_shape.SetInParent()
    assert signature_map.signature_def["s"] == original.signature_def["s"]


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("saved_model_half_plus_two_2_versions_metadata.json", "saved_model_half_plus_two_2_versions"),
        ("saved_model_half_plus_two_tf2_2_versions_metadata.json", "saved_model_half_plus_two_tf2_cpu"),
    ],
)
def test_rest_metadata_is_what_tensorflow_serving_answers(tf_serving_testdata: Path, file: str, folder: str) -> None:
    expected = json.loads((tf_serving_testdata / file).read_text())
    signatures = read_signatures(tf_serving_testdata / folder / "00000123" / "saved_model.pb")
    name, version = expected["model_spec"]["name"], int(expected["model_spec"]["version"])
    found = json.loads(metadata_json(name, version, signatures))
    for document in (found, expected):
        for signature in document["metadata"]["signature_def"]["signature_def"].values():
            # TensorFlow wrote the expected file before signatures had `defaults`.
            signature.pop("defaults", None)
    assert found == expected


def test_defaults_are_told_on_both_wires(saved_model_pb: Path) -> None:
    def edit(meta_graph: object) -> None:
        meta_graph.signature_def["s"].defaults["x"].dtype = 1  # type: ignore[attr-defined]
        meta_graph.signature_def["s"].defaults["x"].float_val.append(2.5)  # type: ignore[attr-defined]

    signatures = read_signatures(_edited(saved_model_pb, edit))
    document = json.loads(metadata_json("m", 1, signatures))["metadata"]["signature_def"]["signature_def"]
    told = document["s"]["defaults"]["x"]
    assert (told["dtype"], told["float_val"], told["tensor_shape"]["dim"]) == ("DT_FLOAT", [2.5], [])
    response = message_class("tensorflow.serving.GetModelMetadataResponse").FromString(
        encode_metadata("m", 1, signatures)
    )
    signature_map = message_class("tensorflow.serving.SignatureDefMap").FromString(
        response.metadata["signature_def"].value
    )
    assert list(signature_map.signature_def["s"].defaults["x"].float_val) == [2.5]
