"""SignatureDefs, tensors and configurations of a SavedModel are read."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.artifact.protos import message_class
from service.artifact.signature_def import (
    SAVED_MODEL_CONFIG,
    check_saved_model_config,
    encode_metadata,
    metadata_json,
    read_signatures,
)
from service.artifact.tensor_proto import NUMPY_DTYPES, decode_tensor, dtype_number, encode_tensor
from service.errors import ArtifactError, InputMismatch, MalformedPayload
from service.types import Array
from tests.toy_model import saved_model


@pytest.mark.parametrize("data", [None, b"", b"\x0a\x02\x18\x01"])
def test_none_an_empty_one_and_any_message_are_taken(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / SAVED_MODEL_CONFIG
    path.parent.mkdir()
    if data is not None:
        path.write_bytes(data)
    check_saved_model_config(tmp_path)


def test_what_is_no_message_is_refused_in_tensorflow_servings_words(tmp_path: Path) -> None:
    path = tmp_path / SAVED_MODEL_CONFIG
    path.parent.mkdir()
    path.write_bytes(b"\x0a\xff")
    with pytest.raises(ArtifactError, match=f"^Unable to parse SavedModelConfig: {path}$"):
        check_saved_model_config(tmp_path)


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


def test_the_text_form_is_read_if_there_is_no_other(saved_model_pb: Path) -> None:
    whole = read_signatures(saved_model_pb)
    message = message_class("tensorflow.SavedModel").FromString(saved_model_pb.read_bytes())
    as_text = saved_model_pb.with_suffix(".pbtxt")
    as_text.write_text("meta_graphs {")
    assert read_signatures(saved_model_pb) == whole
    saved_model_pb.unlink()
    with pytest.raises(ArtifactError, match=r"saved_model\.pbtxt is not a SavedModel: .*1:"):
        read_signatures(saved_model_pb)
    as_text.write_text(text_format.MessageToString(message))
    assert read_signatures(saved_model_pb) == whole


def test_a_file_system_that_fails_is_told(saved_model_pb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "exists", fail)
    with pytest.raises(ArtifactError, match=r"cannot read .*saved_model\.pb: Input/output error"):
        read_signatures(saved_model_pb)


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


def proto(dtype: int, shape: tuple[int, ...] = (), content: bytes = b"", **values: list[Any]) -> Any:
    """Builds a TensorProto; `values` are lists by the names of their fields."""
    message = message_class("tensorflow.TensorProto")(dtype=dtype, tensor_content=content, **values)
    message.tensor_shape.SetInParent()
    for size in shape:
        message.tensor_shape.dim.add().size = size
    return message


def encoded(array: Array, *, as_content: bool = False) -> Any:
    """Encodes an array as a TensorProto, and parses the bytes into a message."""
    pieces = encode_tensor("y", array, as_content=as_content)
    return message_class("tensorflow.TensorProto").FromString(b"".join(pieces))


def same(left: Array, right: Array) -> bool:
    """Says whether two arrays agree in dtype, shape and bits; all NaN count as the same."""
    if left.dtype == object:
        return left.shape == right.shape and left.tolist() == right.tolist()
    if left.dtype == "bfloat16":
        # np.array_equal() with equal_nan does not know bfloat16, so its values are compared as float32.
        return right.dtype == "bfloat16" and same(left.astype(np.float32), right.astype(np.float32))
    return left.dtype == right.dtype and left.shape == right.shape and np.array_equal(left, right, equal_nan=True)


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
# Hypothesis can not draw bfloat16, so such arrays are drawn as uint16 bits.
numeric_arrays = st.sampled_from([dtype for dtype in NUMPY_DTYPES.values()]).flatmap(
    lambda dtype: (
        hnp.arrays(np.uint16, shapes).map(lambda bits: bits.view(dtype))
        if dtype == "bfloat16"
        else hnp.arrays(dtype, shapes)
    )
)


def string_array(strings: list[bytes]) -> Array:
    """Returns a one-dimensional object array of strings; np.array would make another dtype of some lists."""
    result = np.empty(len(strings), object)
    result[:] = strings
    return result


@given(numeric_arrays)
def test_numbers_go_round(array: Array) -> None:
    if array.dtype.kind == "c":
        array = np.nan_to_num(array)
    assert same(decode_tensor("y", encoded(array)), array)
    in_content = encoded(array, as_content=True)
    assert in_content.tensor_content == array.tobytes()
    assert same(decode_tensor("y", in_content), array)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_strings_go_round(strings: list[bytes]) -> None:
    array = string_array(strings)
    assert same(decode_tensor("y", encoded(array)), array)
    assert same(decode_tensor("y", encoded(array, as_content=True)), array)


@given(numeric_arrays)
def test_content_holds_the_array_s_own_bytes(array: Array) -> None:
    if array.dtype.kind == "c":
        array = np.nan_to_num(array)
    message = proto(dtype_number(array.dtype.name), array.shape, array.tobytes())
    assert same(decode_tensor("x", message), array)


@pytest.mark.parametrize("count", [3, 65, 300])
def test_short_and_long_lists_of_values_give_the_same(count: int) -> None:
    values = list(range(count))
    for dtype, field in ((9, "int64_val"), (3, "int_val"), (1, "float_val"), (23, "uint64_val")):
        array = decode_tensor("x", proto(dtype, (count,), **{field: values}))
        assert array.tolist() == values and array.dtype == NUMPY_DTYPES[dtype]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (proto(1, (3,), float_val=[1.0]), [1.0, 1.0, 1.0]),
        (proto(9, (2, 2), int64_val=[1, 2]), [[1, 2], [2, 2]]),
        (proto(1, (2,)), [0.0, 0.0]),
        (proto(7, (2,)), [b"", b""]),
        (proto(7, (2,), string_val=[b"a"]), [b"a", b"a"]),
        (proto(10, (2,), bool_val=[True]), [True, True]),
        (proto(1, (0,)), []),
        (proto(1, (), float_val=[4.0]), 4.0),
    ],
)
def test_the_last_value_fills_up_and_none_gives_zeros(message: Any, expected: Any) -> None:
    assert decode_tensor("x", message).tolist() == expected


def test_halves_travel_as_bits() -> None:
    assert decode_tensor("x", proto(14, (2,), half_val=[0x3F80, 0xC000])).astype(float).tolist() == [1.0, -2.0]
    assert decode_tensor("x", proto(19, (2,), half_val=[0x3C00, 0xC000])).tolist() == [1.0, -2.0]


def test_any_byte_but_zero_is_true() -> None:
    assert decode_tensor("x", proto(10, (3,), b"\x00\x01\x02")).tolist() == [False, True, True]


def test_string_content_is_lengths_then_bytes() -> None:
    long = b"b" * 200
    content = b"\x01\xc8\x01\x00" + b"a" + long
    assert decode_tensor("x", proto(7, (3,), content)).tolist() == [b"a", long, b""]


@pytest.mark.parametrize(
    "message",
    [
        proto(1, (-1,)),
        proto(1, (2, -3), float_val=[1]),
        proto(1, (0, 2**62, 2**62)),
        proto(1, (1,) * 65),
        proto(8, (1,), scomplex_val=[1.0, 2.0, 3.0]),
        proto(7, (2,), b"\x01"),
        proto(7, (1,), b"\x05ab"),
        proto(7, (1,), b"\xff" * 12),
        proto(0, (1,), float_val=[1]),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused_as_tensorflow_serving_does(message: Any) -> None:
    with pytest.raises(MalformedPayload, match="^tensor parsing error: x$"):
        decode_tensor("x", message)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (proto(1, (2,), b"\0" * 7), "tensor_content has 7 bytes, its shape and dtype take 8"),
        (proto(1, (2,), float_val=[1, 2, 3]), "3 values, its shape has room for 2"),
        (proto(7, (1,), string_val=[b"a", b"b"]), "2 values, its shape has room for 1"),
        (proto(1, (10**9,), float_val=[1]), "1000000000 elements, the limit is"),
        (proto(1, (2**62, 4)), "elements, the limit is"),
    ],
)
def test_what_only_this_server_refuses_is_explained(message: Any, problem: str) -> None:
    with pytest.raises(MalformedPayload, match=f"^tensor parsing error: x: .*{problem}"):
        decode_tensor("x", message)


def test_an_unknown_rank_is_refused() -> None:
    message = proto(1, float_val=[1])
    message.tensor_shape.unknown_rank = True
    with pytest.raises(MalformedPayload, match="^tensor parsing error: x$"):
        decode_tensor("x", message)


@pytest.mark.parametrize(("dtype", "name"), [(11, "DT_QINT8"), (20, "DT_RESOURCE")])
def test_a_dtype_without_arrays_is_refused_by_name(dtype: int, name: str) -> None:
    with pytest.raises(InputMismatch, match=f'input "x": dtype {name} is not supported'):
        decode_tensor("x", proto(dtype, (1,)))


def test_an_output_without_a_dtype_is_refused() -> None:
    with pytest.raises(InputMismatch, match="datetime64"):
        encode_tensor("y", np.zeros(1, "datetime64[s]"))


def test_arrays_that_are_not_contiguous_are_written_in_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert decode_tensor("y", encoded(array)).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.tf
@settings(deadline=None)
@given(numeric_arrays)
def test_tensorflow_reads_what_we_write(array: Array) -> None:
    import tensorflow as tf
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    if array.dtype.kind == "c":
        array = np.nan_to_num(array)
    theirs = TensorProto.FromString(b"".join(encode_tensor("y", array)))
    assert same(tf.make_ndarray(theirs), array)
    # TensorFlow's C++ parser, which servers use, reads the same array, but for scalars, which it may read otherwise.
    assert (
        same(tf.io.parse_tensor(theirs.SerializeToString(), tf.as_dtype(array.dtype)).numpy(), array) or not array.ndim
    )


@pytest.mark.tf
@given(numeric_arrays)
def test_we_read_what_tensorflow_writes(array: Array) -> None:
    import tensorflow as tf

    if array.dtype.kind == "c":
        array = np.nan_to_num(array)
    ours = message_class("tensorflow.TensorProto")
    assert same(decode_tensor("x", ours.FromString(tf.make_tensor_proto(array).SerializeToString())), array)
    serialized = tf.io.serialize_tensor(tf.constant(array)).numpy()
    assert same(decode_tensor("x", ours.FromString(serialized)), array)


@pytest.mark.tf
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_we_read_strings_that_tensorflow_writes(strings: list[bytes]) -> None:
    import tensorflow as tf

    ours = message_class("tensorflow.TensorProto")
    array = string_array(strings)
    assert same(decode_tensor("x", ours.FromString(tf.make_tensor_proto(strings).SerializeToString())), array)
    assert same(decode_tensor("x", ours.FromString(tf.io.serialize_tensor(strings).numpy())), array)


@pytest.mark.tf
def test_tensorflow_fills_up_as_we_do() -> None:
    import tensorflow as tf

    for message in (proto(1, (3,), float_val=[1.0]), proto(9, (2, 2), int64_val=[1, 2]), proto(1, (2,))):
        theirs = tf.io.parse_tensor(message.SerializeToString(), tf.as_dtype(message.dtype)).numpy()
        assert same(decode_tensor("x", message), theirs)
