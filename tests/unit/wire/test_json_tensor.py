"""Parses the bodies of Predict (rows, columns, ragged features, strictness) and writes their answers."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InputMismatch, InvalidRequest, MalformedPayload, Unimplemented
from service.types import SignatureSpec, TensorSpec
from service.wire.json_tensor import decode_inputs, decode_predict, encode_predict
from tests.unit.wire.specs import LOOKUP, Keys, ragged, spec, vector


def decoded(document: Any, signature: SignatureSpec) -> dict[str, Any]:
    """Decodes a document, or a body as it is, to lists by input name."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return {name: array.tolist() for name, array in decode_inputs(decode_predict(body), signature).items()}


X = spec(vector("x"))


def one(dtype: str, **more: Any) -> SignatureSpec:
    """Returns the spec of a signature whose only input is "x", a vector of this dtype."""
    return spec(vector("x", dtype, **more))


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({}, "Missing 'inputs' or 'instances' key"),
        (
            {"inputs": [1], "instances": [1]},
            (
                'JSON Value: {\n    "inputs": [1],\n    "instances": [1]\n} Not formatted correctly expecting only one '
                "of 'inputs' or 'instances' keys to exist "
            ),
        ),
        (
            {"instances": {"x": 1}},
            'JSON Value: {\n    "instances": {\n        "x": 1\n    }\n} Expecting \'instances\' to be an list/array',
        ),
        ({"instances": []}, "JSON Value: {\n    \"instances\": []\n} No values in 'instances' array"),
        (
            {"signature_name": 5},
            (
                'JSON Value: {\n    "signature_name": 5\n} not formatted correctly. '
                "'signature_name' key must be a string value."
            ),
        ),
    ],
)
def test_the_outer_form_is_checked_first(document: Any, problem: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decoded(document, X)
    assert caught.value.message == problem


def test_a_signature_without_inputs_has_no_json_form() -> None:
    for name, shown in (("", "DEFAULT"), ("count", "count")):
        with pytest.raises(MalformedPayload, match=f"^Failed to get input map for signature: {shown}$"):
            decoded({"inputs": {}, "signature_name": name}, spec())


def test_the_signature_name_is_read_without_a_signature() -> None:
    body = decode_predict(b'{"signature_name": "s", "instances": [1], "other": 1}')
    assert (body.signature_name, body.layout) == ("s", "row")
    assert decode_predict(b'{"inputs": 1}').signature_name == ""


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"inputs": [1, 2]}, [1, 2]),
        ({"inputs": {"x": [1, 2]}}, [1, 2]),
        ({"inputs": 7}, 7),
        ({"inputs": {"x": [[[1], [2]]]}}, [[[1], [2]]]),
        ({"inputs": {"x": []}}, []),
        ({"inputs": {"x": [[], []]}}, [[], []]),
        ({"instances": [1, 2]}, [1, 2]),
        ({"instances": [{"x": 1}, {"x": 2}]}, [1, 2]),
        ({"instances": [[1, 2], [3, 4]]}, [[1, 2], [3, 4]]),
    ],
)
def test_one_input_needs_no_name(document: Any, expected: Any) -> None:
    assert decoded(document, X) == {"x": expected}


def test_rows_and_columns_give_the_same_arrays() -> None:
    rows = {"instances": [{"user": 1, "tags": [1, 5]}, {"user": 2, "tags": []}]}
    columns = {"inputs": {"user": [1, 2], "tags": [[1, 5], []]}}
    flat = {"inputs": {"user": [1, 2], "tags__values": [1, 5], "tags__row_splits": [0, 2, 2]}}
    expected = {"user": [1, 2], "tags__values": [1, 5], "tags__row_splits": [0, 2, 2]}
    for document in (rows, columns, flat):
        assert decoded(document, LOOKUP) == expected


def test_weights_are_nested_like_their_ids() -> None:
    columns = {"inputs": {"tags": [[1, 5], []], "tags__weights": [[0.5, 1], []]}}
    rows = {"instances": [{"tags": [1, 5], "tags__weights": [0.5, 1]}, {"tags": [], "tags__weights": []}]}
    for document in (columns, rows):
        assert decoded(document, LOOKUP)["tags__weights"] == [0.5, 1.0]
    flat = {"inputs": {"tags__values": [1, 5], "tags__row_splits": [0, 2], "tags__weights": [0.5, 1]}}
    assert decoded(flat, LOOKUP)["tags__weights"] == [0.5, 1.0]


def test_a_single_ragged_feature_needs_no_name() -> None:
    assert decoded({"instances": [[1], [2, 3]]}, spec(*ragged("g"))) == {
        "g__values": [1, 2, 3],
        "g__row_splits": [0, 1, 3],
    }


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_ragged_feature_may_have_no_rows_and_no_ids(count: int) -> None:
    arrays = decode_inputs(decode_predict(orjson.dumps({"inputs": {"tags": [[]] * count}})), LOOKUP)
    assert arrays["tags__row_splits"].tolist() == [0] * (count + 1)
    assert arrays["tags__values"].dtype == np.int64 and arrays["tags__values"].shape == (0,)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"inputs": {"tags": [1, 5]}}, 'feature "tags": expected one list of ids per row, got JSON Value: 1'),
        ({"inputs": {"tags": 5}}, 'feature "tags": expected one list of ids per row'),
        ({"inputs": {"tags": [[[1]]]}}, r'"tags": JSON Value: \[1\] Type: Array is not of expected type: int64'),
        ({"inputs": {"tags": [[1], None]}}, 'feature "tags": expected one list of ids per row, got JSON Value: null'),
        ({"inputs": {"tags": [[1, 2]], "tags__weights": [[1]]}}, 'feature "tags": row 0 has 2 ids but 1 weights'),
        ({"inputs": {"tags": [[1]], "tags__weights": [[1], []]}}, "1 rows of ids but 2 rows of weights"),
        ({"inputs": {"tags": [[1]], "tags__weights": [1]}}, 'weights of feature "tags"'),
        ({"inputs": {"tags": [[1]], "tags__values": [1]}}, 'sent both as "tags" and as "tags__values"'),
        ({"instances": [{"tags__values": [1], "tags__row_splits": [0, 1]}]}, 'in instances, send "tags" as a list'),
        ({"inputs": {"tags": [["red", 1]]}}, "strings and ids are mixed"),
        ({"inputs": {"films": [["red"]]}}, '"red" Type: String is not of expected type: int64'),
        ({"instances": [{"user": 1}, 2]}, "Expecting object but got list at item 1"),
        (
            {"instances": [{"user": 1}, {"user": 1, "tags": []}]},
            r"process element: 1 of 'instances'[\s\S]*equal to: user",
        ),
        ({"instances": [{"user": 1}, {"tags": []}]}, "Failed to process element: 1 of 'instances'"),
    ],
)
def test_ragged_features_and_rows_are_held_to_their_form(document: Any, problem: str) -> None:
    with pytest.raises(MalformedPayload, match=problem):
        decoded(document, LOOKUP)


@pytest.mark.parametrize("document", [{"instances": [1]}, {"inputs": [1]}, {"inputs": {"b64": "eA=="}}])
def test_several_inputs_need_names(document: Any) -> None:
    with pytest.raises(InputMismatch, match="multiple input tensors required: films, tags, user"):
        decoded(document, LOOKUP)


def test_an_unknown_name_is_left_to_validation() -> None:
    assert set(decoded({"inputs": {"user": [1], "stranger": "anything"}}, LOOKUP)) == {"user", "stranger"}


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("int64", [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ("uint64", [2**64 - 1], [2**64 - 1]),
        ("int8", [-128], [-128]),
        ("float32", [1, 2.5], [1.0, 2.5]),
        ("float16", [1.5], [1.5]),
        ("float64", [0.1], [0.1]),
        ("float32", [3.5e38, -(10**60)], [float("inf"), float("-inf")]),
        ("bool", [True, False], [True, False]),
        ("string", ["é", {"b64": "AP8="}, {"b64": "AP8"}], ["é".encode(), b"\x00\xff", b"\x00\xff"]),
        ("string", [], []),
    ],
)
def test_values_of_each_dtype(dtype: str, values: list[Any], expected: list[Any]) -> None:
    arrays = decode_inputs(decode_predict(orjson_or_json({"inputs": values})), one(dtype))
    assert arrays["x"].tolist() == expected
    assert arrays["x"].dtype == (object if dtype == "string" else dtype)


def orjson_or_json(document: Any) -> bytes:
    """Writes JSON with integers of any size."""
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("dtype", "values", "shown"),
    [
        ("int64", [1.0], "1.0 Type: Number"),
        ("int64", [1, True], "true Type: True"),
        ("int64", [False], "false Type: False"),
        ("int64", ["1"], '"1" Type: String'),
        ("int64", [None], "null Type: Null"),
        ("int64", [{"b64": "eA=="}], "Type: Object"),
        ("float32", ["1.5"], '"1.5" Type: String'),
        ("float32", [True], "true Type: True"),
        ("bool", [1], "1 Type: Number"),
        ("string", [1], "1 Type: Number"),
        ("string", ["a", 1], "1 Type: Number"),
    ],
)
def test_a_value_of_another_type_is_shown(dtype: str, values: list[Any], shown: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decoded({"inputs": values}, one(dtype))
    graph_dtype = {"float32": "float"}.get(dtype, dtype)
    assert caught.value.message.startswith("JSON Value: ")
    assert caught.value.message.endswith(f"{shown} is not of expected type: {graph_dtype}")


@pytest.mark.parametrize(("dtype", "value"), [("int64", 2**63), ("int32", 2**31), ("uint8", -1), ("int8", 128)])
def test_an_integer_out_of_range_is_shown(dtype: str, value: int) -> None:
    with pytest.raises(MalformedPayload, match=f"^JSON Value: {value} Type: Number is not of expected type: {dtype}$"):
        decoded({"inputs": [0, value]}, one(dtype))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([[1, 2], [1, 2, 3]], "Encountered list at unexpected size: 3 at level: 1 expected size: 2"),
        ([[1], []], "Encountered list at unexpected size: 0 at level: 1 expected size: 1"),
        ([[1], 2], "JSON Value: 2 found at incorrect level: 2 in the JSON DOM. Expected at level: 2"),
        ([1, [2]], "Encountered list at unexpected level: 1 expected < 1"),
        (json.loads("[" * 70 + "]" * 70), 'input "x": lists are nested over 64 deep.'),
        (json.loads("[" * 700 + "]" * 700), "lists are nested over 200 deep."),
    ],
)
def test_a_dense_input_must_be_rectangular(value: Any, problem: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decoded({"inputs": {"x": value}}, X)
    assert caught.value.message == problem


XY = spec(vector("x"), vector("y"), vector("w", is_optional=True))
ELEMENT = "Failed to process element: {} key: {} of 'instances' list. Error: INVALID_ARGUMENT: {}"


@pytest.mark.parametrize(
    ("document", "signature", "problem"),
    [
        ({"instances": [[1, 2], [1, 2, 3]]}, X, "list. Error: INVALID_ARGUMENT: Expecting tensor size: 2 but got: 3"),
        ({"instances": [[1, 2], [[1, 2]]]}, X, "list. Error: INVALID_ARGUMENT: Expecting shape [2] but got: [1,2]"),
        (
            {"instances": [{"x": 1}, {"x": 1.5}]},
            X,
            ELEMENT.format(1, "x", "JSON Value: 1.5 Type: Number is not of expected type: int64"),
        ),
        ({"instances": [{"z": 1}]}, X, ELEMENT.format(0, "z", "JSON object: does not have named input: z")),
        (
            {"instances": [{"x": 1}]},
            XY,
            (
                "Failed to process element: 0 of 'instances' list. JSON object: {\n    \"x\": 1\n} keys must be equal "
                "to: w,x,y"
            ),
        ),
        ({"instances": [{"x": 1}, 1]}, X, "Expecting object but got list at item 1 of input list"),
        ({"instances": [1, {"x": 1}]}, X, "Expecting value/list but got object at item 1 of input list"),
        (
            {"instances": [1]},
            XY,
            (
                "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
                "tensorinfo_map"
            ),
        ),
        (
            {"inputs": [1]},
            XY,
            (
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            ),
        ),
        ({"inputs": {"x": [1]}}, XY, "Missing named input: y in 'inputs' object."),
        ({"inputs": {"x": [{"b64": "!"}]}}, one("string"), "Unable to base64 decode"),
        (
            {"inputs": {"x": [{"b64": 1}]}},
            one("string"),
            'JSON Value: {\n    "b64": 1\n} not formatted correctly for base64 data',
        ),
    ],
)
def test_what_is_wrong_is_told_as_tensorflow_serving_does(
    document: Any, signature: SignatureSpec, problem: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoded(document, signature)
    assert caught.value.message.endswith(problem)


def test_unknown_names_by_column_are_ignored_and_defaults_are_left_to_the_graph() -> None:
    assert decoded({"inputs": {"x": [1], "y": [2], "z": "?"}}, XY) == {"x": [1], "y": [2]}


@pytest.mark.parametrize("value", [{"b64": 1}, {"b64": "!"}, {"b64": "eA==", "c": 1}, {}])
def test_bad_base64_is_refused(value: Any) -> None:
    with pytest.raises(MalformedPayload, match="base64"):
        decoded({"inputs": {"x": [value]}}, one("string"))


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(MalformedPayload, match="surrogate"):
        decoded(b'{"inputs": {"x": ["\\ud800"], "y": [NaN]}}', spec(vector("x", "string"), vector("y", "float32")))


def test_a_vocabulary_takes_strings_or_ids() -> None:
    signature = one("int64", vocabulary=Keys())
    assert decoded({"inputs": ["red", {"b64": "eA=="}]}, signature) == {"x": [b"red", b"x"]}
    assert decoded({"inputs": [1, 2]}, signature) == {"x": [1, 2]}
    with pytest.raises(MalformedPayload, match="strings and ids are mixed"):
        decoded({"inputs": ["red", 1]}, signature)


def test_strings_where_ids_are_wanted_say_why_not() -> None:
    signature = spec(TensorSpec("x", "int64", (None,), vocabulary_size=5))
    with pytest.raises(MalformedPayload, match="it has no vocabulary, send ids"):
        decoded({"inputs": ["red"]}, signature)


def test_strings_are_the_only_keys_of_a_string_input() -> None:
    signature = spec(vector("word", "string", vocabulary=Keys()), *ragged("words", "string", has_vocabulary=True))
    words = {"words__values": [b"red", b"\xff"], "words__row_splits": [0, 1, 1, 2]}
    by_column = {"word": ["a", "", "grün"], "words": [["red"], [], [{"b64": "/w=="}]]}
    by_row = [{name: rows[i] for name, rows in by_column.items()} for i in range(3)]
    for document in ({"inputs": by_column}, {"instances": by_row}):
        assert decoded(document, signature) == {"word": [b"a", b"", "grün".encode()], **words}
    assert decoded({"inputs": {"words": [[], []]}}, signature) == {"words__values": [], "words__row_splits": [0, 0, 0]}
    for value in ([1], ["red", 1]):
        with pytest.raises(
            MalformedPayload, match=r"not of expected type: string \(send the strings of its vocabulary\)"
        ):
            decoded({"inputs": {"word": value}}, signature)


def test_integer_keys_are_integers() -> None:
    signature = one("int64", vocabulary=Keys("int64", 7))
    assert decoded({"inputs": [7, -(2**63)]}, signature) == {"x": [7, -(2**63)]}
    signature = spec(TensorSpec("x", "int64", (None,), vocabulary_size=5, vocabulary=Keys("int64", 7)))
    for value in (["red"], ["red", 1]):
        with pytest.raises(MalformedPayload, match=r"not of expected type: int64 \(its vocabulary has integers\)"):
            decoded({"inputs": value}, signature)


@pytest.mark.parametrize("dtype", ["complex64", "resource"])
def test_a_dtype_without_json_is_unimplemented(dtype: str) -> None:
    with pytest.raises(Unimplemented, match=f"^Conversion of JSON Value: 1 to type: {dtype}$"):
        decoded({"inputs": [1]}, one(dtype))


def test_bfloat16_goes_both_ways() -> None:
    arrays = decode_inputs(decode_predict(b'{"instances": [1.5, -2]}'), one("bfloat16"))
    assert arrays["x"].dtype == "bfloat16"
    assert encode_predict({"y": arrays["x"]}, "row") == b'{"predictions":[1.5,-2.0]}'


def test_answers_by_column() -> None:
    y, z = np.array([[1.5, 2]], np.float32), np.array(3)
    assert encode_predict({"y": y}, "columnar") == b'{"outputs":[[1.5,2.0]]}'
    assert encode_predict({"y": y, "z": z}, "columnar") == b'{"outputs":{"y":[[1.5,2.0]],"z":3}}'
    assert encode_predict({"z": np.array(np.nan)}, "columnar") == b'{"outputs":NaN}'


def test_sequences_are_lists_of_lists_of_lists() -> None:
    path = np.array([[[1, 2], [np.nan, 0]], [[3, 4], [0, 0]]], np.float32)
    y = np.array([1, 2])
    assert encode_predict({"path": path}, "columnar") == b'{"outputs":[[[1.0,2.0],[NaN,0.0]],[[3.0,4.0],[0.0,0.0]]]}'
    assert encode_predict({"path": path, "y": y}, "row") == (
        b'{"predictions":[{"path":[[1.0,2.0],[NaN,0.0]],"y":1},{"path":[[3.0,4.0],[0.0,0.0]],"y":2}]}'
    )
    assert encode_predict({"path": path[:0]}, "columnar") == b'{"outputs":[]}'


def test_answers_by_row() -> None:
    y, z = np.array([[1.5], [np.inf]], np.float32), np.array([1, 2])
    assert encode_predict({"y": y}, "row") == b'{"predictions":[[1.5],[Infinity]]}'
    assert encode_predict({"y": y, "z": z}, "row") == b'{"predictions":[{"y":[1.5],"z":1},{"y":[Infinity],"z":2}]}'


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"y": np.array(1.0)}, "Tensor name: y has no shape information"),
        ({"y": np.zeros(2), "z": np.zeros(3)}, "Tensor name: z has inconsistent batch size: 3 expecting: 2"),
    ],
)
def test_rows_need_outputs_of_as_many_rows(arrays: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputMismatch, match=problem):
        encode_predict(arrays, "row")


def test_bytes_go_as_base64_where_the_name_says_so_or_utf8_can_not() -> None:
    strings = np.array([["é".encode()], [b"\xff"]], object)
    assert json.loads(encode_predict({"y": strings}, "columnar")) == {"outputs": [["é"], [{"b64": "/w=="}]]}
    assert json.loads(encode_predict({"y_bytes": strings[0]}, "row")) == {"predictions": [{"b64": "w6k="}]}


def test_arrays_that_are_not_contiguous_are_written_in_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert json.loads(encode_predict({"y": array}, "columnar"))["outputs"] == array.tolist()


def test_an_output_without_json_is_refused() -> None:
    with pytest.raises(InputMismatch, match="^Failed to write JSON value for tensor type: complex64$"):
        encode_predict({"y": np.zeros(1, np.complex64)}, "columnar")


def nested(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draws rectangular lists of rank 1 to 3."""
    return st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)).flatmap(
        lambda shape: st.lists(values, min_size=math.prod(shape), max_size=math.prod(shape)).map(
            lambda flat: np.array(flat).reshape(shape).tolist()
        )
    )


@given(nested(st.integers(-(2**63), 2**63 - 1)))
def test_ints_go_round(values: Any) -> None:
    arrays = decode_inputs(decode_predict(orjson.dumps({"inputs": {"x": values}})), X)
    assert json.loads(encode_predict(arrays, "columnar")) == {"outputs": values}
    arrays = decode_inputs(decode_predict(orjson.dumps({"instances": values})), X)
    assert json.loads(encode_predict(arrays, "row")) == {"predictions": values}


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5))
def test_ragged_lists_go_round(rows: list[list[int]]) -> None:
    arrays = decode_inputs(decode_predict(orjson.dumps({"inputs": {"tags": rows}})), LOOKUP)
    splits, values = arrays["tags__row_splits"].tolist(), arrays["tags__values"].tolist()
    assert [values[a:b] for a, b in zip(splits, splits[1:], strict=False)] == rows


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_any_json_is_an_array_or_a_clean_error(value: Any) -> None:
    body = json.dumps({"inputs": {"user": value, "tags": value}}).encode()
    try:
        arrays = decode_inputs(decode_predict(body), LOOKUP)
    except (MalformedPayload, InputMismatch):
        return
    assert set(arrays) <= set(LOOKUP.inputs)
