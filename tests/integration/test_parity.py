"""The server's answers are TensorFlow's, on both wires: sums to the bit, predictions, examples and refusals."""

from __future__ import annotations

import base64
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.foreign.comparing import Tally, compare
from tests import oracle
from tests.integration.process import ServerProcess
from tests.toy_model import MANIFEST, manifest_of

pytestmark = pytest.mark.tf

NUM_REQUESTS = 60
NUM_ROWS = 60
COMBINERS = ("sum", "mean", "sqrtn")
KINDS = ("ragged", "sparse", "weighted")
SIGNATURES = ("lookup", "serving_default")


@pytest.fixture(scope="module")
def artifact(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports a model with a feature for each combiner and kind of ids; its outputs are the features' vectors."""
    from loadtest.foreign.frameworks import tf as tensorflow
    from model_export.export_model import export
    from model_export.layers.tpu_embedding import TPUEmbedding

    embedding, keras = tensorflow.tpu.experimental.embedding, tensorflow.keras
    normal = keras.initializers.RandomNormal(seed=3)
    tables = {c: embedding.TableConfig(NUM_ROWS, 13, name=c, combiner=c, initializer=normal) for c in COMBINERS}
    config, inputs, weights = {}, {}, {}
    for combiner, kind in ((c, k) for c in COMBINERS for k in KINDS):
        name = f"{kind}_{combiner}"
        form = {"ragged": True} if kind == "ragged" else {"sparse": True}
        config[name] = embedding.FeatureConfig(tables[combiner], name=name)
        inputs[name] = keras.Input((None,), dtype="int64", name=name, **form)
        weights[name] = None
        if kind == "weighted":
            weights[name] = inputs[f"{name}_by"] = keras.Input((None,), name=f"{name}_by", **form)
    vectors = TPUEmbedding(config, None)({name: inputs[name] for name in config}, weights=weights)
    outputs = {f"{name}_twice": vectors[name] * 2 for name in config}
    return Path(export(keras.Model(inputs, outputs), tmp_path_factory.mktemp("exact") / "m", signatures=SIGNATURES))


def test_the_manifest_has_the_order_of_each_graph(artifact: Path) -> None:
    manifest = manifest_of(artifact)
    orders = {name: f.summation for name, f in manifest.signatures["serving_default"].features.items()}
    expected = {"ragged": "in_order", "sparse": "blocks_of_8", "weighted": "four_lanes"}
    assert orders == {f"{kind}_{combiner}": expected[kind] for kind in KINDS for combiner in COMBINERS}
    # The exporter builds the lookup's graph itself, with ragged ids.
    assert {f.summation for f in manifest.signatures["lookup"].features.values()} == {"in_order"}


def requests(signature: Any) -> Iterator[dict[str, Any]]:
    """Yields random requests: rows of up to 40 ids, weights of any sign; each second one without weights."""
    random = np.random.default_rng(11)
    for number in range(NUM_REQUESTS):
        lengths = random.integers(0, random.choice([4, 12, 41]), random.integers(1, 12))
        request: dict[str, Any] = {}
        for name in (key.removesuffix("__values") for key in signature if key.endswith("__values")):
            count = int(lengths.sum())
            request[f"{name}__values"] = random.integers(0, NUM_ROWS, count)
            request[f"{name}__row_splits"] = np.cumsum([0, *lengths])
            if f"{name}__weights" in signature:
                count = count if number % 2 else 0
                request[f"{name}__weights"] = random.uniform(-0.5, 2, count).astype(np.float32)
        yield request


def test_both_wires_give_tensorflows_bits(artifact: Path) -> None:
    with warnings.catch_warnings():
        # The import of TensorFlow Serving's stock stubs warns of faults in them, which this project can not mend.
        warnings.simplefilter("ignore")
        from loadtest.foreign.wires import GrpcWire, RestWire
    from loadtest.foreign.reference import Reference

    tally = Tally()
    with (
        ServerProcess(model_base_path=artifact.parent, model_name="m", rest_api_keep_alive_s=600).ready() as server,
        closing(Reference(artifact)) as reference,
        closing(GrpcWire(f"127.0.0.1:{server.grpc_port}")) as over_grpc,
        closing(RestWire(f"http://127.0.0.1:{server.http_port}")) as over_rest,
    ):
        assert set(reference.signatures) == set(SIGNATURES)
        for signature, inputs in reference.signatures.items():
            for request in requests(inputs):
                expected = reference.predict(signature, request)
                for wire in (over_grpc, over_rest):
                    compare(tally, expected, partial(wire.predict, "m", signature, request, expected))
    assert not tally.reasons
    assert tally.equal == tally.asked == 4 * NUM_REQUESTS and not tally.refused


MAX_ROWS = 4
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
STRANGER = "no such string"

Request = dict[str, list[Any]]


class Model:
    """An exported model: its manifest, its tables as TensorFlow reads them, and its signatures in TensorFlow."""

    def __init__(self, tf: Any, base: Path) -> None:
        artifact = base / "1"
        self.manifest = json.loads((artifact / MANIFEST).read_text())
        reader = tf.train.load_checkpoint(str(artifact / "variables" / "variables"))
        self.tables = {name: reader.get_tensor(table["variable"]) for name, table in self.manifest["tables"].items()}
        self.strings = {
            name: (artifact / vocabulary["file"]).read_text().splitlines()
            for name, vocabulary in self.manifest["vocabularies"].items()
        }
        self._loaded = tf.saved_model.load(str(artifact))
        self._tf = tf

    def table(self, feature: str) -> np.ndarray:
        """Returns a feature's table."""
        return self.tables[self.manifest["features"][feature]["table"]]

    def features(self, signature: str) -> dict[str, Any]:
        """Returns the manifest's entries for a signature's features."""
        return self.manifest["signatures"][signature]["features"]

    def in_tensorflow(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature in TensorFlow; returns the outputs by name."""
        tensors = {name: self._tf.constant(array) for name, array in inputs.items()}
        return {name: output.numpy() for name, output in self._loaded.signatures[signature](**tensors).items()}

    def rows(self, feature: str, ids: list[Any]) -> list[Any]:
        """Returns ids, or lists of them, with strings turned into rows."""
        vocabulary = self.manifest["features"][feature]["vocabulary"]
        strings = self.strings[vocabulary] if vocabulary else []

        def row(item: Any) -> Any:
            if isinstance(item, list):
                return [row(i) for i in item]
            return item if not isinstance(item, str) else strings.index(item) + 1 if item in strings else 0

        return [row(item) for item in ids]


@pytest.fixture(scope="module")
def base(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies a model folder that the exporter wrote."""
    return Path(shutil.copytree(demo_model, tmp_path_factory.mktemp("parity") / "models"))


@pytest.fixture(scope="module")
def model(tf: Any, base: Path) -> Model:
    """See Model."""
    return Model(tf, base)


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[ServerProcess]:
    """Starts a server that runs the model's graphs with TensorFlow."""
    with ServerProcess(model_base_path=base, graph_signatures="auto") as server:
        yield server.ready()


@pytest.fixture(scope="module")
def num_requests(request: pytest.FixtureRequest) -> int:
    """Returns the number of random requests from the option --parity-requests."""
    return int(request.config.getoption("--parity-requests"))


class Random:
    """Draws requests with empty rows, repeated ids, first and last rows of tables, weights, and strings."""

    def __init__(self, model: Model, seed: int) -> None:
        self._model, self._random = model, np.random.default_rng(seed)

    def rows(self, low: int = 1) -> int:
        """Returns a random number of rows, from `low` on."""
        return int(self._random.integers(low, MAX_ROWS + 1))

    def coin(self, chance: float) -> bool:
        """Returns True with this probability."""
        return bool(self._random.random() < chance)

    def ids(self, feature: str, lookup: Mapping[str, Any], rows: int, *, strings: bool = False) -> list[Any]:
        """Returns one random id for each row of a request, or a list of them if the feature is ragged."""
        if not lookup["row_splits"]:
            return self._some(feature, rows, strings)
        longest = lookup["max_ids_per_row"] or 12
        return [self._some(feature, int(self._random.integers(0, longest + 1)), strings) for _ in range(rows)]

    def _some(self, feature: str, count: int, strings: bool) -> list[Any]:
        vocabulary = self._model.manifest["features"][feature]["vocabulary"]
        if strings and vocabulary:
            known = [*self._model.strings[vocabulary], STRANGER]
            return [known[i] for i in self._random.integers(0, len(known), count)]
        last = len(self._model.table(feature)) - 1
        ids = self._random.integers(0, last + 1, count)
        edges = self._random.random(count) < 0.2
        ids[edges] = self._random.choice([0, last], edges.sum())
        return ids.tolist()

    def weights(self, ids: list[Any]) -> list[list[float]]:
        """Returns a factor per id that float32 holds exactly, some of them 0."""
        return [(self._random.integers(0, 17, len(row)) / 8).tolist() for row in ids]


def tensors(
    features: Mapping[str, Any], ids: Request, weights: Request, dtype: str, *, with_empty_weights: bool = False
) -> dict[str, np.ndarray]:
    """Returns a request's input tensors by name, as a gRPC client sends them."""

    def array(items: list[Any]) -> np.ndarray:
        if any(isinstance(item, str) for item in items):
            return np.array([item.encode() for item in items], object)
        return np.array(items, dtype)

    inputs = {}
    for name, lookup in features.items():
        if not lookup["row_splits"]:
            inputs[lookup["ids"]] = array(ids[name])
            continue
        inputs[lookup["ids"]] = array([item for row in ids[name] for item in row])
        inputs[lookup["row_splits"]] = oracle.ragged(ids[name], "O")[1]
        if name in weights:
            inputs[lookup["weights"]] = oracle.ragged(weights[name], "float32")[0]
        elif with_empty_weights and lookup["weights"]:
            inputs[lookup["weights"]] = np.empty(0, np.float32)
    return inputs


def expected_lookup(model: Model, features: Mapping[str, Any], ids: Request, weights: Request) -> dict[str, np.ndarray]:
    """Returns the oracle's answer to a lookup, by output name."""
    outputs = {}
    for name, lookup in features.items():
        table, rows = model.table(name), model.rows(name, ids[name])
        if not lookup["row_splits"]:
            outputs[lookup["output"]] = oracle.gather(table, rows)
        else:
            outputs[lookup["output"]] = oracle.combine(
                table,
                rows,
                lookup["combiner"],
                weights=weights.get(name),
                at_least_one=lookup["mean_divisor"] == "at_least_one",
                max_ids=lookup["max_ids_per_row"],
            )
    return outputs


@pytest.mark.parametrize("signature", ["lookup", "lookup_tpu_tensor_core"])
def test_lookups_equal_tensorflow_and_the_oracle(
    model: Model, server: ServerProcess, num_requests: int, signature: str
) -> None:
    features = model.features(signature)
    is_padded = signature != "lookup"
    dtype = "int32" if is_padded else "int64"
    random = Random(model, seed=11)
    seen = {"empty row": 0, "repeated id": 0, "weights": 0, "strings": 0}
    for number in range(num_requests):
        strings, rows = random.coin(0.25), random.rows()
        # All features of a request to the padded graph must have the same number of rows; the other graph accepts
        # different numbers.
        ids = {
            name: random.ids(name, lookup, rows if is_padded else random.rows(), strings=strings)
            for name, lookup in features.items()
        }
        ragged = [name for name, lookup in features.items() if lookup["row_splits"]]
        weights = {name: random.weights(ids[name]) for name in ragged if random.coin(0.5)}
        seen["empty row"] += any(not row for name in ragged for row in ids[name])
        seen["repeated id"] += any(len(set(row)) < len(row) for name in ragged for row in ids[name])
        seen["weights"] += bool(weights)
        seen["strings"] += strings

        over_http = server.lookup(ids, weights, signature_name=signature)
        over_grpc = server.predict_grpc(tensors(features, ids, weights, dtype), signature)
        as_rows = {name: model.rows(name, items) for name, items in ids.items()}
        graph_inputs = tensors(features, as_rows, weights, dtype, with_empty_weights=True)
        in_graph = model.in_tensorflow(signature, graph_inputs)
        by_hand = expected_lookup(model, features, ids, weights)
        assert sorted(over_http) == sorted(over_grpc) == sorted(in_graph) == sorted(by_hand)
        for name, array in over_grpc.items():
            where = f"request {number}, {name}"
            assert np.array_equal(np.array(over_http[name], np.float32).reshape(array.shape), array), where
            np.testing.assert_allclose(array, in_graph[name], **TOLERANCE, err_msg=where)
            np.testing.assert_allclose(array, by_hand[name], **TOLERANCE, err_msg=where)
    assert all(count > num_requests // 20 for count in seen.values()), seen


def test_predict_equals_tensorflow_on_both_wires(model: Model, server: ServerProcess, num_requests: int) -> None:
    features = model.features("serving_default")
    random = Random(model, seed=12)
    for number in range(num_requests):
        rows = random.rows()
        ids = {name: random.ids(name, lookup, rows) for name, lookup in features.items()}
        inputs = tensors(features, ids, {}, "int64")
        (expected,) = model.in_tensorflow("serving_default", inputs).values()
        (over_grpc,) = server.predict_grpc(inputs, "").values()
        instances = [dict(zip(ids, row, strict=True)) for row in zip(*ids.values(), strict=True)]
        over_rows = post(server, {"instances": instances})["predictions"]
        over_columns = post(server, {"inputs": {name: array.tolist() for name, array in inputs.items()}})["outputs"]
        np.testing.assert_allclose(over_grpc, expected, **TOLERANCE, err_msg=f"request {number}")
        for answer in (over_rows, over_columns):
            np.testing.assert_allclose(np.array(answer, np.float32), expected, **TOLERANCE, err_msg=f"request {number}")


def test_predict_takes_strings_for_ids(model: Model, server: ServerProcess) -> None:
    features = model.features("serving_default")
    random = Random(model, seed=13)
    ids = {name: random.ids(name, lookup, 3, strings=True) for name, lookup in features.items()}
    as_rows = {name: model.rows(name, items) for name, items in ids.items()}
    (expected,) = model.in_tensorflow("serving_default", tensors(features, as_rows, {}, "int64")).values()
    (over_grpc,) = server.predict_grpc(tensors(features, ids, {}, "int64"), "").values()
    over_http = post(server, {"inputs": ids})["outputs"]
    np.testing.assert_allclose(over_grpc, expected, **TOLERANCE)
    np.testing.assert_allclose(np.array(over_http, np.float32), expected, **TOLERANCE)


def test_serve_examples_equals_tensorflow_on_both_wires(
    tf: Any, model: Model, server: ServerProcess, num_requests: int
) -> None:
    features = model.features("serving_default")
    random = Random(model, seed=14)
    for number in range(max(num_requests // 10, 1)):
        rows = random.rows()
        ids = {name: random.ids(name, lookup, rows, strings=True) for name, lookup in features.items()}
        examples = [example(tf, {name: items[r] for name, items in ids.items()}) for r in range(rows)]
        inputs = {"examples": np.array(examples, object)}
        as_rows = {name: model.rows(name, items) for name, items in ids.items()}
        (expected,) = model.in_tensorflow("serving_default", tensors(features, as_rows, {}, "int64")).values()
        (in_graph,) = model.in_tensorflow("serve_examples", inputs).values()
        (over_grpc,) = server.predict_grpc(inputs, "serve_examples").values()
        instances = [{"b64": base64.b64encode(e).decode()} for e in examples]
        over_http = post(server, {"signature_name": "serve_examples", "instances": instances})["predictions"]
        for answer in (in_graph, over_grpc, np.array(over_http, np.float32)):
            np.testing.assert_allclose(answer, expected, **TOLERANCE, err_msg=f"request {number}")


def example(tf: Any, row: Mapping[str, Any]) -> bytes:
    """Returns a serialized tf.Example with the values of one row."""
    message = tf.train.Example()
    for name, value in row.items():
        items = value if isinstance(value, list) else [value]
        feature = message.features.feature[name]
        if any(isinstance(item, str) for item in items):
            feature.bytes_list.value.extend(item.encode() for item in items)
        elif items:
            feature.int64_list.value.extend(items)
    return bytes(message.SerializeToString())


def post(server: ServerProcess, body: Any) -> Any:
    """Posts a body to :predict; returns the answer."""
    response = server.http.post("/v1/models/default:predict", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_every_id_of_every_table_is_served_as_stored(model: Model, server: ServerProcess) -> None:
    for name, table in model.tables.items():
        response = server.http.post(f"/v1/models/default/tables/{name}:rows", json={"ids": list(range(len(table)))})
        assert np.array_equal(np.array(response.json()["rows"], np.float32), table)


def test_what_the_graph_refuses_the_server_refuses_in_words(model: Model, server: ServerProcess) -> None:
    for body, text in (
        ({"signature_name": "serve_examples", "instances": [{"b64": "//8="}]}, "Could not parse example input"),
        ({"instances": [{name: -1 for name in model.features("serving_default")}]}, "list"),
        ({"inputs": {"user_id": [1]}}, '"film_id", "genres", "occupation", "recent_films" are missing.'),
    ):
        response = server.http.post("/v1/models/default:predict", json=body)
        assert response.status_code == 400, response.text
        assert text in response.json()["error"]


def test_a_new_version_is_served_by_tensorflow_too(base: Path, model: Model, server: ServerProcess) -> None:
    before = post(server, {"inputs": {name: [] for name in model.features("serving_default")}})
    shutil.copytree(base / "1", base / "incoming")
    (base / "incoming").rename(base / "2")
    server.wait_for_log("loaded", version=2)
    after = post(server, {"inputs": {name: [] for name in model.features("serving_default")}})
    assert before == after == {"outputs": []}
    server.wait_for_log("version state", version=1, state="END")
