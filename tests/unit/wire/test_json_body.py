"""Documents in JSON are bounded, read and written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from service.artifact.protos import message_class
from service.errors import MalformedPayload, PayloadTooLarge
from service.types import Array, SignatureSpec, State, TableInfo, TensorSpec, VersionStatus
from service.versions.neighbors import NeighborAnswer
from service.wire import oip_models
from service.wire.api import encode_statuses, statuses_json
from service.wire.json_body import (
    MAX_KEYS,
    MAX_LISTS,
    MAX_STRINGS,
    decode_neighbors,
    dump_plain,
    encode_neighbors,
    encode_tables,
    id_list,
    key_list,
    parse_body,
    parse_object,
    row_list,
)
from service.wire.oip_models import encode_document, model_config, model_metadata, repository_index, server_metadata


@pytest.fixture
def usual_limit() -> Iterator[None]:
    """Sets the interpreter's usual limit of nesting, which a library in this process may have raised."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


KEYS = frozenset({"a", "b", "c"})
DEEP = b"[" * 1000 + b"]" * 1000


def parse(body: bytes) -> dict[str, object]:
    """Parses a body that may have the keys a, b and c."""
    return parse_body("A search", body, KEYS)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "The body is not JSON: Input is a zero-length, empty document"),
        (b'{"a": 1} x', "The body is not JSON: unexpected content after document"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"\x1f\x8b\x08", "compressed by gzip: send it with the header Content-Encoding: gzip."),
        ('{"a": 1}'.encode("utf-16"), "encode it as UTF-8."),
        ('{"a": 1}'.encode("utf-16-be"), "encode it as UTF-8."),
        (b'{"a": \xff}', "The body is not JSON: "),
        (b'{"a": "\\ud800"}', "The body is not JSON: no low surrogate"),
        (b'{"a": 1e400}', "number is infinity"),
        (b'{"a": [1, NaN]}', "line 1 column 11 (char 10). JSON has no NaN and no Infinity."),
        (b'{"a": -Infinity}', "JSON has no NaN and no Infinity."),
        (b'{"a": Inf}', "JSON has no NaN and no Infinity."),
        (b"[" * 500_000, "The body is not JSON: depth limit exceeded"),
        (b'{"a": ' * 100_000, "The body is not JSON: depth limit exceeded"),
        (b"null", "A search is a JSON object, the body is null."),
        (b'["' + b"x" * 100 + b'"]', 'A search is a JSON object, the body is ["' + "x" * 58 + "...."),
        (b'{"d": 1, "A": 2}', "Unknown keys: A, d. A search has: a, b, c."),
        (b"{%s}" % b",".join(b'"k%02d":1' % i for i in range(30)), "k08, k09. A search has"),
        (b'{"a": 1, "a": 2}', 'The body has the key "a" twice in one object.'),
        (b'{"a": [{"b64": "x", "b64": "x"}]}', 'The body has the key "b64" twice in one object.'),
        (b'{"a": {"x": 1}, "b": {"x": 1, "x": 2}}', 'The body has the key "x" twice in one object.'),
        (b'{"a": "::", "b": ' + DEEP + b"}", "nested too deeply"),
    ],
)
@pytest.mark.usefixtures("usual_limit")
def test_a_body_that_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        parse(body)
    assert text in caught.value.message and len(caught.value.message) < 400


def test_colons_in_strings_are_no_keys() -> None:
    assert parse(b'{"a": "x:y", "b": [{"b64": ":"}, {"b64": ""}]}') == {"a": "x:y", "b": [{"b64": ":"}, {"b64": ""}]}


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"a":{%s}}' % b",".join(b'"%d":1' % number for number in range(MAX_KEYS)), "keys"),
        (b'{"a":[%s]}' % b",".join([b"[]"] * MAX_LISTS), "lists"),
        (b'{"a":[' + b'"",' * MAX_STRINGS + b'""]}', "strings"),
    ],
    ids=["keys", "lists", "strings"],
)
def test_a_body_of_too_many_values_is_refused(body: bytes, word: str) -> None:
    with pytest.raises(PayloadTooLarge, match=word):
        parse(body)


def test_ids() -> None:
    assert id_list("ids", [0, 2**63 - 1, -(2**63)]).tolist() == [0, 2**63 - 1, -(2**63)]
    assert id_list("ids", []).dtype == np.int64


def test_keys() -> None:
    assert key_list("keys", ["ä", {"b64": "/w=="}, ""]).tolist() == ["ä".encode(), b"\xff", b""]
    assert key_list("keys", [1, 2]).dtype == np.int64
    assert key_list("keys", []).size == 0


@pytest.mark.parametrize(
    ("convert", "value", "text"),
    [
        (id_list, None, '"n" is null, expected a flat list.'),
        (id_list, [1, 2.0], '"n"[1] is 2.0, expected an integer.'),
        (id_list, [0, 2**63], '"n"[1] is 9223372036854775808, which does not fit int64.'),
        (key_list, "x", '"n" is "x", expected a flat list.'),
        (key_list, ["x", 1], '"n"[1] is 1, expected a string or {"b64": "..."}, or an integer as all keys.'),
        (key_list, [1, "x"], '"n"[1] is "x", expected an integer.'),
        (key_list, [{"b64": "?"}], '"n"[0] is {"b64":"?"}, expected {"b64": "..."} with base64 text.'),
        (key_list, [{"b64": 1}], '"n"[0] is {"b64":1}, expected {"b64": "..."} with base64 text.'),
        (key_list, [{}], '"n"[0] is {}, expected {"b64": "..."} with base64 text.'),
        (key_list, [{"b64": "ä"}], "with base64 text."),
        (key_list, [[]], '"n"[0] is [], expected a string'),
        (row_list, None, '"n" is not a list of lists of numbers.'),
        (row_list, [[1], 2], '"n" is not a list of lists of numbers.'),
        (row_list, [[1], [2, 3]], '"n"[1] has 2 numbers, "n"[0] has 1.'),
        (row_list, [[1, 2], [2, None]], '"n"[1][1] is null, expected a number.'),
        (row_list, [[1], [True]], '"n"[1][0] is true, expected a number.'),
    ],
)
def test_a_list_that_is_refused(convert: object, value: object, text: str) -> None:
    assert callable(convert)
    with pytest.raises(MalformedPayload) as caught:
        convert("n", value)
    assert text in caught.value.message


@given(st.lists(st.lists(st.floats(width=32) | st.integers(-1000, 1000), min_size=3, max_size=3), max_size=4))
def test_rows(rows: list[list[float]]) -> None:
    found = row_list("rows", rows)
    assert found.dtype == np.float32 and found.shape == (len(rows), 3 if rows else 0)
    np.testing.assert_array_equal(found, np.array(rows, np.float32).reshape(found.shape))


def test_rows_of_no_numbers_and_of_too_large_numbers() -> None:
    assert row_list("rows", [[], []]).shape == (2, 0)
    assert row_list("rows", [[1e39, 18446744073709551615]]).tolist() == [[np.inf, 2.0**64]]


def test_answers_are_plain_json() -> None:
    values: Array = np.array([[1, np.nan], [np.inf, 0.1]], np.float32)
    assert dump_plain({"a": values, "b": [values[0], np.float64("-inf")]}) == (
        b'{"a":[[1.0,null],[null,0.1]],"b":[[1.0,null],null]}'
    )


def document(keys: int, lists: int) -> bytes:
    """Returns a JSON object with `lists` empty lists under the key "a", and `keys` further keys."""
    return b'{"a":[%s],%s}' % (b",".join([b"[]"] * lists), b",".join(b'"%d":1' % number for number in range(keys)))


@pytest.mark.slow
def test_as_many_as_may_be_are_read() -> None:
    assert len(parse_object("A body", document(MAX_KEYS - 1, 9))) == MAX_KEYS
    assert len(parse_object("A body", document(1, MAX_LISTS - 2))["a"]) == MAX_LISTS - 2


@pytest.mark.parametrize(("keys", "lists", "word"), [(MAX_KEYS, 9, "keys"), (1, MAX_LISTS - 1, "lists")])
def test_one_more_is_refused(keys: int, lists: int, word: str) -> None:
    with pytest.raises(PayloadTooLarge, match=word):
        parse_object("A body", document(keys, lists))


def test_a_document_of_more_strings_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="strings"):
        parse_object("A body", b'{"a":[' + b'"",' * MAX_STRINGS + b'""]}')


def test_a_body_with_everything() -> None:
    query = decode_neighbors(
        b'{"keys": ["a", {"b64": "/w=="}], "k": 3, "metric": "l2", "feature": "f", "include_self": true,'
        b' "filter": {"ids": [4], "keys": ["b"], "exclude_ids": [5, 6], "exclude_keys": []}}'
    )
    assert query.rows.keys is not None and query.rows.keys.tolist() == [b"a", b"\xff"]
    assert (query.k, query.metric, query.feature, query.include_self) == (3, "l2", "f", True)
    assert query.allowed.ids is not None and query.allowed.ids.tolist() == [4]
    assert query.allowed.keys is not None and query.allowed.keys.tolist() == [b"b"]
    assert query.denied.ids is not None and query.denied.ids.tolist() == [5, 6]
    assert query.denied.size == 2


def test_defaults() -> None:
    query = decode_neighbors(b'{"vectors": [[1, 2.5]]}')
    assert query.vectors is not None and query.vectors.tolist() == [[1.0, 2.5]]
    assert (query.k, query.metric, query.include_self) == (10, "dot", False)
    assert not query.rows.is_given and not query.allowed.is_given and not query.denied.is_given
    assert decode_neighbors(b'{"ids": [1], "filter": {"ids": []}}').allowed.is_given


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "A search is a JSON object, the body is []."),
        (b"{}", 'Expected one of "ids", "keys", "vectors" and "labels"'),
        (b'{"ids": [1], "vectors": [[1]]}', 'Expected one of "ids", "keys", "vectors" and "labels"'),
        (b'{"ids": [1], "top": 3}', "Unknown keys: top. A search has: exact, feature, filter, ids,"),
        (b'{"ids": [1], "labels": ["a"]}', 'Expected one of "ids", "keys", "vectors" and "labels"'),
        (b'{"labels": true}', 'Expected one of "ids", "keys", "vectors" and "labels"'),
        (b'{"labels": [1]}', '"labels" is [1], expected a list of labels, or true for the labels of the found rows.'),
        (b'{"ids": 1}', '"ids" is 1, expected a flat list.'),
        (b'{"ids": [7, "a"]}', '"ids"[1] is "a", expected an integer.'),
        (b'{"ids": [true]}', '"ids"[0] is true, expected an integer.'),
        (b'{"vectors": [1, 2]}', '"vectors" is not a list of lists of numbers.'),
        (b'{"vectors": [[1], [2, 3]]}', '"vectors"[1] has 2 numbers, "vectors"[0] has 1.'),
        (b'{"vectors": null}', '"vectors" is not a list of lists of numbers.'),
        (b'{"ids": [1], "k": 2.5}', '"k" is 2.5, expected a number of neighbours.'),
        (b'{"ids": [1], "k": true}', '"k" is true'),
        (b'{"ids": [1], "metric": "ip"}', '"metric" is "ip", expected one of: dot, cosine, l2.'),
        (b'{"ids": [1], "metric": ["l2"]}', '"metric" is ["l2"], expected'),
        (b'{"ids": [1], "feature": 3}', '"feature" is a string'),
        (b'{"ids": [1], "filter": [1]}', '"filter" is [1], expected an object.'),
        (b'{"ids": [1], "filter": {"not": []}}', "Unknown keys: not. A filter has: exclude_ids,"),
        (b'{"ids": [1], "filter": {"ids": [[1]]}}', '"ids"[0] is [1], expected an integer.'),
        (b'{"vectors": [[NaN]]}', "JSON has no NaN and no Infinity."),
    ],
)
def test_what_is_wrong_is_named(body: bytes, text: str) -> None:
    with pytest.raises(MalformedPayload) as caught:
        decode_neighbors(body)
    assert text in caught.value.message


def test_an_answer_ends_each_list_with_the_last_neighbor() -> None:
    ids = np.array([[3, 0], [1, -1], [-1, -1]])
    scores = np.array([[2.5, np.inf], [0.1, np.nan], [np.nan, np.nan]], np.float32)
    keys = np.array([[b"x", None], [b"\xff", None], [None, None]], object)
    answer = NeighborAnswer(ids, scores, keys, 1, 4)
    plain = b'{"ids":[[3,0],[1],[]],"keys":[["x",null],[{"b64":"/w=="}],[]],"scores":[[2.5,%s],[0.1],[]]}'
    assert encode_neighbors(answer) == plain % b"null"
    assert encode_neighbors(answer._replace(keys=None)) == b'{"ids":[[3,0],[1],[]],"scores":[[2.5,null],[0.1],[]]}'


def test_tables_are_listed_with_all_that_is_known() -> None:
    info = TableInfo("t", 3, 2, "float32", 24, ("a", "b"), ((0, 1),))
    assert json.loads(encode_tables([info])) == {
        "tables": [
            {
                "name": "t",
                "vocabulary_size": 3,
                "embedding_dim": 2,
                "dtype": "float32",
                "nbytes": 24,
                "features": ["a", "b"],
                "unknown_key_rows": [[0, 1]],
            }
        ]
    }


def signature() -> SignatureSpec:
    """Returns a signature with a tensor of each kind that model metadata must describe."""
    inputs = {
        "i": TensorSpec("i", "int64", (None, 2)),
        "s": TensorSpec("s", "string", (), is_optional=True),
        "b": TensorSpec("b", "bfloat16", None),
        "c": TensorSpec("c", "complex64", (3,)),
    }
    return SignatureSpec("lookup", "predict", "m", inputs, {"y": TensorSpec("y", "float32", (None,))})


STATUSES = [
    VersionStatus(4, State.LOADING),
    VersionStatus(3, State.AVAILABLE),
    VersionStatus(2, State.END, "NOT_FOUND", "no file"),
    VersionStatus(1, State.END),
]


def test_model_metadata() -> None:
    document = model_metadata("m", STATUSES, signature())
    assert document == {
        "name": "m",
        "versions": ["3"],
        "platform": "tensorflow_savedmodel",
        "inputs": [
            {"name": "i", "datatype": "INT64", "shape": [-1, 2]},
            {"name": "s", "datatype": "BYTES", "shape": []},
            {"name": "b", "datatype": "BF16", "shape": [-1]},
            {"name": "c", "datatype": "DT_COMPLEX64", "shape": [3]},
        ],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    }
    message = message_class("inference.ModelMetadataResponse").FromString(
        encode_document("inference.ModelMetadataResponse", document)
    )
    assert list(message.inputs[0].shape) == [-1, 2]
    assert [tensor.datatype for tensor in message.inputs] == ["INT64", "BYTES", "BF16", "DT_COMPLEX64"]


def test_model_config() -> None:
    document = model_config("m", signature())
    assert (document["max_batch_size"], document["platform"]) == (0, "tensorflow_savedmodel")
    assert document["input"] == [
        {"name": "i", "data_type": "TYPE_INT64", "dims": [-1, 2]},
        {"name": "s", "data_type": "TYPE_STRING", "dims": [], "optional": True},
        {"name": "b", "data_type": "TYPE_BF16", "dims": [-1]},
        {"name": "c", "data_type": "TYPE_INVALID", "dims": [3]},
    ]
    encoded = encode_document("inference.ModelConfigResponse", {"config": document})
    message = message_class("inference.ModelConfigResponse").FromString(encoded)
    assert [tensor.data_type for tensor in message.config.input] == [9, 13, 14, 0]
    assert [tensor.optional for tensor in message.config.input] == [False, True, False, False]
    assert message.config.output[0].name == "y"


def test_repository_index() -> None:
    statuses = {"m": STATUSES, "none": []}
    entries = repository_index(statuses, {"none": "no version folder"}, only_ready=False)
    assert [(e["name"], e["version"], e["state"], e["reason"]) for e in entries] == [
        ("m", "4", "LOADING", ""),
        ("m", "3", "READY", ""),
        ("m", "2", "UNAVAILABLE", "no file"),
        ("m", "1", "UNAVAILABLE", "unloaded"),
        ("none", "", "UNAVAILABLE", "no version folder"),
    ]
    assert [e["version"] for e in repository_index(statuses, {}, only_ready=True)] == ["3"]
    encoded = encode_document("inference.RepositoryIndexResponse", {"models": entries})
    message = message_class("inference.RepositoryIndexResponse").FromString(encoded)
    assert json_format.MessageToDict(message.models[1]) == {"name": "m", "version": "3", "state": "READY"}


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_name(state: State) -> None:
    (entry,) = repository_index({"m": [VersionStatus(1, state)]}, {}, only_ready=False)
    assert entry["state"] in ("READY", "LOADING", "UNLOADING", "UNAVAILABLE")


def test_server_metadata() -> None:
    document = server_metadata()
    assert document["name"] == "embedding-server" and document["version"]
    assert "binary_tensor_data" in document["extensions"]
    assert oip_models.encode_document("inference.ServerMetadataResponse", document)


_STATUSES = [VersionStatus(2, State.END, "FAILED_PRECONDITION", "corrupt"), VersionStatus(1, State.AVAILABLE)]


def test_every_state_has_its_number() -> None:
    statuses = [VersionStatus(n, state) for n, state in enumerate(State)]
    response = message_class("tensorflow.serving.GetModelStatusResponse").FromString(encode_statuses(statuses))
    assert [entry.state for entry in response.model_version_status] == [0, 10, 20, 30, 40, 50]


def test_codes_and_texts_are_kept_in_order() -> None:
    response = message_class("tensorflow.serving.GetModelStatusResponse").FromString(encode_statuses(_STATUSES))
    entries = [(e.version, e.status.error_code, e.status.error_message) for e in response.model_version_status]
    assert entries == [(2, 9, "corrupt"), (1, 0, "")]


def test_json_has_versions_as_strings_and_names_of_states() -> None:
    failed = {"error_code": "FAILED_PRECONDITION", "error_message": "corrupt"}
    assert json.loads(statuses_json(_STATUSES)) == {
        "model_version_status": [
            {"version": "2", "state": "END", "status": failed},
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}},
        ]
    }
