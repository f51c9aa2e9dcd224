"""Looks up in manifest format 4 on every wire: free input names, joined outputs, and policies without a kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.hashes import fingerprint64
from service.artifact.protos import message_class
from service.artifact.tensor_proto import decode_tensor
from service.core.native_servable import compile_native
from service.loading.loader import ServableLoader
from service.versions.servable import Servable
from tests.conformance.conftest import wires_of_server
from tests.conformance.wires import PREDICT, Failure, HttpClient, Request, Wire, predict_request
from tests.exposition import read_exposition
from tests.integration.process import ServerProcess, server_of
from tests.toy_described import described_tables, write_described_model
from tests.toy_model import stored_numbers

TENSOR_WIRES = ("grpc", "oip json", "oip binary", "oip grpc")


@dataclass(frozen=True)
class Served:
    """The model "described" behind every wire that takes tensors, and a client of its HTTP interface.

    opened: the version, opened by the loader alone.
    """

    opened: Servable
    server: ServerProcess
    wires: dict[str, Wire]
    http: HttpClient

    def ask(self, signature: str, **inputs: Any) -> dict[str, list[Any]]:
        """Sends a signature's inputs over all wires; returns their outputs, after checking that they agree."""
        found = [self.wires[name].send(request(signature, inputs)) for name in TENSOR_WIRES]
        for other in found[1:]:
            assert {name: array.tolist() for name, array in other.items()} == {
                name: array.tolist() for name, array in found[0].items()
            }
        return {name: array.tolist() for name, array in found[0].items()}

    def refusal(self, signature: str, **inputs: Any) -> str:
        """Returns the error's text, after checking that all wires send the same text and INVALID_ARGUMENT."""
        texts = set()
        for name in TENSOR_WIRES:
            with pytest.raises(Failure) as failure:
                self.wires[name].send(request(signature, inputs))
            assert failure.value.code == self.wires[name].code("INVALID_ARGUMENT")
            texts.add(failure.value.text)
        (text,) = texts
        return text

    def post(self, signature: str, method: str, **body: Any) -> tuple[int, Any]:
        """Sends a JSON body with a signature's name; returns the status and the answer."""
        return self.http.post(f"/v1/models/described:{method}", json.dumps(body | {"signature_name": signature}))

    def predict_request(self, signature: str, **inputs: Any) -> bytes:
        """Returns a serialized PredictRequest for a signature of model "described"."""
        return predict_request("described", request(signature, inputs).arrays(), signature)


def request(signature: str, inputs: dict[str, Any]) -> Request:
    """Returns a request of raw tensors."""
    return Request(signature, inputs=inputs, model="described")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("described")
    write_described_model(base / "1")
    with (
        server_of({"described": base}, tmp_path_factory.mktemp("served"), graph_signatures="off") as server,
        closing(ServableLoader(frozenset({"serve"}), "off", compile_native)("described", 1, base / "1")) as opened,
    ):
        yield Served(opened, server, wires_of_server(server), HttpClient(server.http))


NAMED = {"tag_values": [1, 2, 3], "tag_offsets": [0, 2, 2, 3]}
GENRES = [[1.5, 2.5, 1], [0, 0, 0], [3, 9, 1]]


def test_every_signature_is_served_from_its_tables(served: Served) -> None:
    assert served.opened.signature_faults == {}
    assert {spec.kind for spec in served.opened.signatures.values()} == {"lookup"}
    assert served.opened.signatures["named"].ragged.keys() == {"genre", "own"}


def test_freely_named_tensors_on_every_wire(served: Served) -> None:
    assert served.ask("named", **NAMED) == {"genre_vector": GENRES}
    factors = [0.5, 1.5, 2.0]
    assert served.ask("named", **NAMED, tag_factors=factors)["genre_vector"] == [[1.75, 3.25, 1], [0, 0, 0], [3, 9, 1]]
    both = served.ask("named", own=[1, 2], own_rows=[0, 2], film_id=[8])
    assert both == {"film": [[24, 32]], "own": [[9, 12]]}


def test_freely_named_tensors_in_columns(served: Served) -> None:
    assert served.post("named", "predict", inputs=NAMED) == (200, {"outputs": GENRES})
    assert served.post("named", "predict", inputs={"own": [1, 2], "own_rows": [0, 2]}) == (200, {"outputs": [[9, 12]]})


@pytest.mark.parametrize("weights", [None, [[0.5, 1.5], [], [2]]])
def test_a_ragged_feature_goes_by_its_own_name_in_json(served: Served, weights: Any) -> None:
    ids = [[1, 2], [], [3]]
    wanted = GENRES if weights is None else [[1.75, 3.25, 1], [0, 0, 0], [3, 9, 1]]
    by_name = {} if weights is None else {"genre": weights}
    assert served.post("named", "lookup", features={"genre": ids}, weights=by_name) == (
        200,
        {"embeddings": {"genre_vector": wanted}},
    )
    columns = {"genre": ids} | ({} if weights is None else {"tag_factors": weights})
    assert served.post("named", "predict", inputs=columns) == (200, {"outputs": wanted})
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert served.post("named", "predict", instances=rows) == (200, {"predictions": wanted})


def test_a_feature_may_be_called_as_the_input_of_its_ids(served: Served) -> None:
    assert served.post("named", "lookup", features={"own": [[1, 2], []]})[1] == {
        "embeddings": {"own": [[9, 12], [0, 0]]}
    }
    assert served.post("named", "predict", inputs={"own": [[1, 2], []]})[1] == {"outputs": [[9, 12], [0, 0]]}
    assert served.post("named", "predict", instances=[{"own": [1, 2]}, {"own": []}])[1] == {
        "predictions": [[9, 12], [0, 0]]
    }


def test_raw_tensors_in_instances_are_read_as_tensorflow_serving_reads_them(served: Served) -> None:
    # The two tensors have equal lengths here, so that each instance can hold one element of both.
    rows = [{"tag_values": 1, "tag_offsets": 0}, {"tag_values": 2, "tag_offsets": 2}]
    assert served.post("named", "predict", instances=rows) == (200, {"predictions": [[1.5, 2.5, 1]]})


def test_what_is_wrong_with_freely_named_tensors_is_told_by_their_names(served: Served) -> None:
    assert served.refusal("named", tag_values=[1], tag_offsets=[0, 2]) == (
        'input "tag_offsets": ends at 2, but "tag_values" has 1 values.'
    )
    assert "must not decrease, got 1 then 0" in served.refusal("named", tag_values=[1], tag_offsets=[0, 1, 0, 1])
    assert "Missing but required: {tag_offsets}" in served.refusal("named", tag_values=[1])
    assert served.refusal("named", tag_values=[4], tag_offsets=[0, 1]).startswith('input "tag_values": id 4')
    # Weights without a default are not left empty: TensorFlow refuses such a request, too.
    for count in (1, 2):
        told = served.refusal("named", tag_values=[1] * count, tag_offsets=[0, count], tag_factors=[])
        assert told == f'input "tag_factors": expected one weight per id ({count}), got [0].'
    assert served.ask("named", tag_values=[], tag_offsets=[0, 0], tag_factors=[]) == {"genre_vector": [[0, 0, 0]]}
    status, answer = served.post("named", "predict", inputs={"genre": [[1]], "tag_values": [1]})
    assert (status, answer) == (400, {"error": 'feature "genre" was sent both as "genre" and as "tag_values".'})


JOINED = {"user": [2, 1], "tags__values": [1, 3], "tags__row_splits": [0, 2, 2]}
MORE = {"more__values": [3, -1, 1], "more__row_splits": [0, 2, 3]}


def test_features_stand_side_by_side_in_an_output(served: Served) -> None:
    wanted = {"both": [[6, 8, 2, 5, 1], [3, 4, 0, 0, 0]], "tags": [[2, 5, 1], [0, 0, 0]]}
    assert served.ask("joined", **JOINED) == wanted
    everything = served.ask("joined", **JOINED, **MORE)
    assert everything == wanted | {"all": [[3, 9, 1, 2, 5, 1, 6, 8], [1, 1, 1, 0, 0, 0, 3, 4]]}
    assert served.post("joined", "lookup", features={"user": [2, 1], "tags": [[1, 3], []]}) == (
        200,
        {"embeddings": {name: wanted[name] for name in ("both", "tags")}},
    )
    assert served.post("joined", "predict", instances=[{"user": 2, "tags": [1, 3]}, {"user": 1, "tags": []}]) == (
        200,
        {"predictions": [{name: wanted[name][row] for name in ("both", "tags")} for row in range(2)]},
    )


def test_a_feature_of_two_outputs_is_looked_up_once(served: Served) -> None:
    def ids() -> float:
        family = read_exposition(served.server.http.get("/metrics").text)["embedding_server_table_ids_total"]
        return sum(value for (_, labels), value in family.samples.items() if ("table", "tag") in labels)

    before = ids()
    served.wires["grpc"].send(request("joined", JOINED))
    assert ids() - before == 2


def test_an_output_is_answered_where_all_of_its_features_were_sent(served: Served) -> None:
    assert served.ask("joined", tags__values=[1], tags__row_splits=[0, 1]) == {"tags": [[1, 1, 1]]}
    assert served.refusal("joined", user=[1]) == (
        'output "both" of signature "joined" joins several features. Missing but required: {tags}.'
    )
    message = message_class("tensorflow.serving.PredictRequest").FromString(served.predict_request("joined", **JOINED))
    message.output_filter.append("all")
    with pytest.raises(grpc.RpcError, match='output "all" of signature "joined" joins .* Missing but required: {more}'):
        served.server.channel.unary_unary(PREDICT)(message.SerializeToString(), timeout=60)


def test_features_of_one_output_must_have_as_many_rows(served: Served) -> None:
    assert served.refusal("joined", **(JOINED | {"user": [1]})) == (
        'output "both" joins features that differ in their number of rows: "user" has 1, "tags__values" has 2.'
    )


def test_long_vectors_are_bounded_before_they_are_combined(served: Served) -> None:
    # Row i of the table has the norm 5 i. max_norm is 10, so rows 2 to 9 are read as [6, 8].
    asked = served.ask("bounded", one=[1, 2, 8])
    np.testing.assert_allclose(asked["one"], [[3, 4], [6, 8], [6, 8]], rtol=1e-6)
    bag = {"bag__values": [8, 1, -1, 9, 2], "bag__row_splits": [0, 3, 3, 5]}
    np.testing.assert_allclose(served.ask("bounded", **bag)["bag"], [[4.5, 6], [0, 0], [6, 8]], rtol=1e-6)
    weighted = served.ask("bounded", **bag, bag__weights=[1.0, 3.0, 5.0, 5.0, 0.5])["bag"]
    np.testing.assert_allclose(weighted, [[3.75, 5], [0, 0], [6, 8]], rtol=1e-6)
    path = served.ask("bounded", path__values=[99, 1, 7, -5], path__row_splits=[0, 3, 4])["path"]
    np.testing.assert_allclose(path, [[[6, 8], [3, 4]], [[0, 0], [0, 0]]], rtol=1e-6)


def test_a_row_without_ids_that_count_reads_a_bounded_default_row(served: Served) -> None:
    inputs = {"safe__values": [1, -1, 2, 8], "safe__row_splits": [0, 1, 2, 2, 4]}
    # With all weights 1, sqrtn divides the sum by the root of the number of ids.
    root = 2**0.5
    wanted = [[3, 4], [6, 8], [6, 8], [12 / root, 16 / root]]
    np.testing.assert_allclose(served.ask("bounded", **inputs)["safe"], wanted, rtol=1e-6)
    weights = served.ask("bounded", **inputs, safe__weights=[0.0, 1.0, 1.0, -2.0])["safe"]
    np.testing.assert_allclose(weights, [[6, 8], [6, 8], [6, 8], [6, 8]], rtol=1e-6)


@pytest.mark.parametrize(
    ("feature", "wanted"),
    [
        ("zero", [[0, 0, 0], [1.5, 2.5, 1], [0, 0, 0]]),
        ("nan", [[np.nan] * 3, [1.5, 2.5, 1], [np.nan] * 3]),
        ("row", [[2, 4, 1], [3, 5, 2], [2, 4, 1]]),
        ("cut", [[0, 0, 0], [1.5, 2.5, 1]]),
    ],
)
def test_rows_without_ids_follow_the_manifest(served: Served, feature: str, wanted: list[Any]) -> None:
    values, splits = [1, 2], [0, 0, 2, 2]
    sent = request("empty", {f"{feature}__values": values, f"{feature}__row_splits": splits})
    for name in TENSOR_WIRES:
        np.testing.assert_array_equal(served.wires[name].send(sent)[feature], np.array(wanted, np.float32), name)
    status, answer = served.post("empty", "lookup", features={feature: [[], [1, 2], []]})
    assert status == 200 and len(answer["embeddings"][feature]) == len(wanted)


def test_dropped_ids_do_not_count(served: Served) -> None:
    assert served.ask("empty", row__values=[-1, 4], row__row_splits=[0, 2]) == {"row": [[2, 4, 1]]}


def test_nothing_is_left_of_a_cut_feature_without_ids(served: Served) -> None:
    found = served.wires["grpc"].send(request("empty", {"cut__values": [], "cut__row_splits": [0, 0, 0]}))
    assert found["cut"].shape == (0, 3)


def test_a_cut_feature_can_not_be_joined_with_longer_ones(served: Served) -> None:
    inputs = {"cut__values": [1], "cut__row_splits": [0, 1, 1], "zero__values": [2, 3], "zero__row_splits": [0, 1, 2]}
    assert served.refusal("empty", **inputs) == (
        'output "pair" joins features that differ in their number of rows: "cut__values" has 1 (its last 1 rows hold '
        'no ids, and the model\'s graph leaves them out), "zero__values" has 2.'
    )
    inputs |= {"cut__values": [1, 1], "cut__row_splits": [0, 1, 2]}
    assert served.ask("empty", **inputs)["pair"] == [[1, 1, 1, 2, 4, 1], [1, 1, 1, 3, 9, 1]]


def test_ids_of_two_dimensions(served: Served) -> None:
    assert served.ask("blocks", any=[[1, 2, 0], [0, 0, 1]]) == {
        "any": [[[3, 4], [6, 8], [0, 0]], [[0, 0], [0, 0], [3, 4]]]
    }
    assert served.ask("blocks", two=[[1, 2], [-1, 1]]) == {"two": [[3, 4, 6, 8], [0, 0, 3, 4]]}
    assert served.ask("blocks", one=[2], two=[[1, 2]]) == {"two": [[3, 4, 6, 8]], "wide": [[6, 8, 3, 4, 6, 8]]}
    assert served.ask("blocks", any=[[2]]) == {"any": [[[6, 8]]]}
    wanted = [[3, 4, 6, 8], [0, 0, 3, 4]]
    assert served.post("blocks", "lookup", features={"two": [[1, 2], [0, 1]]})[1] == {"embeddings": {"two": wanted}}
    assert served.post("blocks", "predict", inputs={"two": [[1, 2], [0, 1]]})[1] == {"outputs": wanted}
    assert served.post("blocks", "predict", instances=[{"two": [1, 2]}, {"two": [0, 1]}])[1] == {"predictions": wanted}


def test_ids_of_another_shape_are_refused(served: Served) -> None:
    assert (
        served.refusal("blocks", two=[[1, 2, 3]])
        == 'input "two": the signature declares [?, 2], the request has [1, 3].'
    )
    assert served.refusal("blocks", two=[1, 2]) == 'input "two": the signature declares [?, 2], the request has [2].'
    assert served.refusal("blocks", any=[[1, 2], [9, 1]]).startswith('input "any": id 9 at position 2')


@pytest.mark.parametrize("as_content", [False, True])
def test_rows_are_answered_as_their_table_is_stored(served: Served, as_content: bool) -> None:
    data = served.predict_request(
        "stored", half=[2, 1], double=[9, 1], steps__values=[1, 2, 0], steps__row_splits=[0, 3]
    )
    metadata = (("x-tensor-encoding", "content" if as_content else "values"),)
    answer = served.server.channel.unary_unary(PREDICT)(data, timeout=60, metadata=metadata)
    response = message_class("tensorflow.serving.PredictResponse").FromString(answer)
    found = {name: decode_tensor(name, tensor) for name, tensor in response.outputs.items()}
    double = described_tables()["double"]
    assert {name: array.dtype for name, array in found.items()} == {
        "half": np.float16,
        "double": np.float64,
        "steps": np.float64,
    }
    assert found["half"].tolist() == [[2, 0.5], [1, 0.25]]
    assert np.array_equal(found["double"], double[[2, 1]])
    assert np.array_equal(found["steps"], double[[[1, 2]]])
    assert bool(response.outputs["half"].half_val) is not as_content


def test_stored_rows_in_json_and_in_the_open_inference_protocol(served: Served) -> None:
    assert served.post("stored", "lookup", features={"half": [2, 1]})[1] == {
        "embeddings": {"half": [[2, 0.5], [1, 0.25]]}
    }
    double = described_tables()["double"]
    assert served.post("stored", "predict", inputs={"double": [2]})[1] == {"outputs": double[[2]].tolist()}
    for is_binary in (False, True):
        body = {
            "inputs": [{"name": "double", "datatype": "INT64", "shape": [1], "data": [2]}],
            "parameters": {"signature_name": "stored", "binary_data_output": is_binary},
        }
        response = served.http.exchange("POST", "/v2/models/described/infer", json.dumps(body).encode())
        length = int(response.headers.get("Inference-Header-Content-Length", len(response.content)))
        (output,) = json.loads(response.content[:length])["outputs"]
        assert (output["datatype"], output["shape"]) == ("FP64", [1, 2])
        values = np.frombuffer(response.content[length:], "<f8") if is_binary else np.array(output["data"])
        assert np.array_equal(values.reshape(1, 2), double[[2]])


def test_bfloat16_keeps_its_bits(served: Served) -> None:
    pytest.importorskip("ml_dtypes")
    bits = stored_numbers(described_tables()["brain"], "bfloat16")
    assert served.post("stored", "lookup", features={"brain": [2]})[1] == {"embeddings": {"brain": [[2, 0.5]]}}
    for encoding in ("content", "values"):
        call = served.server.channel.unary_unary(PREDICT)
        data = served.predict_request("stored", brain=[2, -1, 1])
        answer = call(data, timeout=60, metadata=(("x-tensor-encoding", encoding),))
        tensor = message_class("tensorflow.serving.PredictResponse").FromString(answer).outputs["brain"]
        found = decode_tensor("brain", tensor)
        assert (tensor.dtype, found.dtype.name) == (14, "bfloat16")
        assert np.array_equal(found.view(np.uint16), np.stack([bits[2], 0 * bits[0], bits[1]]))


def test_hashed_keys_and_oov_rows_of_keras(served: Served) -> None:
    words = ["red", "", "x y z"]
    rows = {
        "word": [2 + fingerprint64(word.encode()) % 7 for word in words],
        # "red" is the first word of the vocabulary: row 3. "" is the mask token: row 0. Other words get row 1 or 2 by
        # their hash.
        "keras": [3, 0, 1 + fingerprint64(b"x y z") % 2],
        "masked": [2, 0, 1],
    }
    for feature, expected in rows.items():
        assert served.ask("hashed", **{feature: words})[feature] == [[3 * row, 4 * row] for row in expected]
    codes = [0, -12, 12345]
    expected = [fingerprint64(str(code).encode()) % 9 for code in codes]
    assert served.ask("hashed", code=codes)["code"] == [[3 * row, 4 * row] for row in expected]
    assert served.post("hashed", "lookup", features={"word": ["red"]})[0] == 200
