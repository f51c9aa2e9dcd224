"""A server with batching gives the same answers as one without, to the last bit, in whatever batches requests run."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from service.artifact.protos import message_class
from tests.conformance.wires import PREDICT, predict_request, read_tensor
from tests.exposition import read_exposition
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.tower_model import TAGS, USERS

PREFIX = ":tensorflow:serving:batching_session:"
REQUESTS = 60
# The parameters of the models: "quick" has TensorFlow Serving's usual ones; "full" runs a batch only once it has 48
# rows; "small" refuses what does not fit into two batches.
PARAMETERS = {
    "quick": """
      max_batch_size { value: 16 }
      batch_timeout_micros { value: 20000 }
      max_enqueued_batches { value: 100 }
      allowed_batch_sizes: [4, 8, 16]
    """,
    "full": "max_batch_size { value: 48 } batch_timeout_micros { value: 600000000 }",
    "small": "max_batch_size { value: 2 } batch_timeout_micros { value: 2000 } max_enqueued_batches { value: 2 }",
    "split": """
      max_batch_size { value: 64 }
      enable_large_batch_splitting { value: true }
      max_execution_batch_size { value: 4 }
      max_enqueued_batches { value: 100 }
    """,
}


@pytest.fixture(scope="module")
def version(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel that works row by row on numbers and strings, and signatures whose outputs are not by row."""
    module = tf.Module()
    x, word = tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.string, "word")

    @tf.function(input_signature=[x, word], autograph=False)
    def rowwise(x: Any, word: Any) -> Any:
        hashed = tf.strings.to_hash_bucket_fast(word, 1000)
        return {"x": 0.1 * x + 2.0, "word": tf.cast(hashed, tf.float32), "text": tf.strings.join([word, word])}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")], autograph=False)
    def total(x: Any) -> Any:
        return {"total": tf.reduce_sum(x), "pair": tf.zeros([2]), "half": 0.5 * x}

    @tf.function(input_signature=[word], autograph=False)
    def number(word: Any) -> Any:
        return {"y": tf.strings.to_number(word)}

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32, "x")], autograph=False)
    def wide(x: Any) -> Any:
        return {"y": x * 2.0}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")], autograph=False)
    def product(x: Any) -> Any:
        return {"y": tf.matmul(x, tf.ones([2, 1]))}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")], autograph=False)
    def lengths(inputs: Any) -> Any:
        return {"outputs": tf.cast(tf.strings.length(inputs), tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")], autograph=False)
    def scores(inputs: Any) -> Any:
        return {"scores": tf.cast(tf.strings.length(inputs), tf.float32)[:, tf.newaxis] * 2.0}

    folder = tmp_path_factory.mktemp("batching") / "1"
    signatures = {"lengths": lengths, "scores": scores}
    signatures |= {"serving_default": rowwise, "total": total, "number": number, "wide": wide, "product": product}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder


@pytest.fixture(scope="module")
def server(version: Path, tower_version: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server with a model for each of PARAMETERS, and the model "tower", whose lookups are cut."""
    base = tmp_path_factory.mktemp("models")
    models = {name: version for name in PARAMETERS} | {"tower": tower_version}
    for name, source in models.items():
        made = Path(shutil.copytree(source, base / name / "1"))
        (made / "batching_params.pbtxt").write_text(PARAMETERS.get(name, PARAMETERS["quick"]))
    config = base / "models.config"
    listed = [f"config {{ name: '{name}' base_path: '{base / name}' model_platform: 'tensorflow' }}" for name in models]
    config.write_text(f"model_config_list {{ {' '.join(listed)} }}")
    threads = base / "threads.txt"
    threads.write_text("num_batch_threads { value: 2 } thread_pool_name { value: 'batch_threads' }")
    with ServerProcess(
        model_config_file=config,
        version_settle_s=0,
        enable_batching="true",
        enable_per_model_batching_parameters="true",
        batching_parameters_file=threads,
    ) as server:
        yield server.ready()


def counted(server: ServerProcess, name: str, **labels: str) -> float:
    """Returns a sample of the server's metrics; 0 if there is none."""
    family, _, suffix = name.partition("|")
    found = read_exposition(server.http.get("/metrics").text)[family]
    return found.value(suffix, **labels) if found.samples else 0


def start(
    server: ServerProcess, model: str, signature: str, inputs: dict[str, Any], timeout_s: float = PATIENCE_S
) -> Any:
    """Starts a Predict over gRPC; returns its call."""
    return server.channel.unary_unary(PREDICT).future(predict_request(model, inputs, signature), timeout=timeout_s)


def outputs_of(call: Any) -> dict[str, Any]:
    """Waits for the answer of a Predict; returns its outputs."""
    response = message_class("tensorflow.serving.PredictResponse").FromString(call.result())
    return {
        name: np.array([*tensor.string_val, *tensor.int_val], object) if tensor.dtype != 1 else read_tensor(tensor)
        for name, tensor in response.outputs.items()
    }


def request_of(number: int) -> dict[str, Any]:
    """Returns random inputs of one to three rows that depend on the request's number."""
    rng = np.random.default_rng(number)
    rows = int(rng.integers(1, 4))
    return {
        "x": rng.normal(size=(rows, 2)).astype(np.float32),
        "word": np.array([b"word-%d-%d" % (number, i) for i in range(rows)], object),
    }


@pytest.mark.tf
def test_interleaved_clients_of_both_wires_get_the_answers_of_an_unbatched_run(
    server: ServerProcess, version: Path, tf: Any
) -> None:
    alone = tf.saved_model.load(str(version)).signatures["serving_default"]
    requests = [request_of(number) for number in range(REQUESTS)]
    arrived = counted(server, f"{PREFIX}input_batch_size|_count")
    runs = counted(server, f"{PREFIX}wrapped_run_count")

    def over_http(request: dict[str, Any]) -> dict[str, Any]:
        inputs = {"x": request["x"].tolist(), "word": [word.decode() for word in request["word"]]}
        told = server.http.post("/v1/models/quick:predict", json={"inputs": inputs})
        assert told.status_code == 200, told.text
        outputs = told.json()["outputs"]
        return {
            "x": np.array(outputs["x"], np.float32),
            "word": np.array(outputs["word"], np.float32),
            "text": np.array([text.encode() for text in outputs["text"]], object),
        }

    with ThreadPoolExecutor(16) as clients:
        of_http = clients.map(over_http, requests)
        of_grpc = [outputs_of(call) for call in [start(server, "quick", "", request) for request in requests]]
        for request, *found in zip(requests, of_grpc, of_http, strict=True):
            expected = alone(**{name: tf.constant(array) for name, array in request.items()})
            for answer in found:
                assert answer.keys() == {"x", "word", "text"}
                for name in ("x", "word"):
                    assert answer[name].tobytes() == expected[name].numpy().tobytes(), name
                assert answer["text"].tolist() == expected["text"].numpy().tolist()
    assert counted(server, f"{PREFIX}input_batch_size|_count") == arrived + 2 * REQUESTS
    assert 0 < counted(server, f"{PREFIX}wrapped_run_count") - runs < 2 * REQUESTS, "some ran together"
    assert counted(server, "embedding_server_queue_seconds|_count") >= 2 * REQUESTS
    assert server.http.get("/v1/statusz").json()["data_plane"]["forwarded"]["grpc"] == 0


@pytest.mark.tf
def test_predicts_with_lookups_share_runs_and_get_their_own_rows(server: ServerProcess) -> None:
    users, tags = np.array(USERS), np.array(TAGS)
    calls = []
    for number in range(400):
        ids = (np.arange(1 + number % 3) + number) % 4
        inputs = {"user": ids, "tags__values": ids % 3, "tags__row_splits": np.arange(len(ids) + 1)}
        calls.append((ids, start(server, "tower", "serving_default", inputs)))
    for ids, call in calls:
        wanted = np.concatenate([users[ids], tags[ids % 3]], 1) @ [1, 10, 100, 1000] + 0.5
        assert outputs_of(call)["score"].ravel().tolist() == wanted.tolist()
    named = [
        (names, start(server, "tower", "keyed", {"names": np.array(names, object)}))
        for names in ([b"ann"], [b"bob", b"eve"], [b"eve", b"ann", b"bob"]) * 20
    ]
    rows = {b"ann": USERS[1], b"bob": USERS[2], b"eve": USERS[0]}
    for names, call in named:
        assert (outputs_of(call)["rows"] / 2).tolist() == [rows[name] for name in names]


@pytest.mark.tf
def test_requests_wait_together_without_a_thread_for_each(server: ServerProcess) -> None:
    runs = counted(server, f"{PREFIX}wrapped_run_count")
    arrived = counted(server, f"{PREFIX}input_batch_size|_count")
    x = np.arange(96, dtype=np.float32).reshape(48, 1, 2)
    calls = [start(server, "full", "wide", {"x": one}) for one in x[:-1]]
    until(lambda: counted(server, f"{PREFIX}input_batch_size|_count") == arrived + 47)
    assert not any(call.done() for call in calls)
    calls.append(start(server, "full", "wide", {"x": x[-1]}))
    for one, call in zip(x, calls, strict=True):
        assert outputs_of(call)["y"].tolist() == (one * 2).tolist()
    assert counted(server, f"{PREFIX}wrapped_run_count") == runs + 1


@pytest.mark.tf
def test_requests_of_other_shapes_and_outputs_are_not_joined(server: ServerProcess) -> None:
    runs = counted(server, f"{PREFIX}wrapped_run_count")
    shapes = [(24, 3), (24, 4), (24, 3), (24, 4), (48,)]
    arrays = [np.random.default_rng(n).normal(size=shape).astype(np.float32) for n, shape in enumerate(shapes)]
    for array, call in zip(arrays, [start(server, "full", "wide", {"x": array}) for array in arrays], strict=True):
        assert outputs_of(call)["y"].tolist() == (array * 2).tolist()
    assert counted(server, f"{PREFIX}wrapped_run_count") == runs + 3


@pytest.mark.tf
def test_what_is_refused_is_refused_in_tensorflow_servings_words(server: ServerProcess) -> None:
    def refused(inputs: dict[str, Any], signature: str) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as error:
            start(server, "quick", signature, inputs).result()
        return error.value.code(), error.value.details()  # type: ignore[attr-defined]

    def over_http(signature: str, inputs: Any) -> tuple[int, dict[str, Any]]:
        told = server.http.post("/v1/models/quick:predict", json={"signature_name": signature, "inputs": inputs})
        return told.status_code, told.json()

    code = grpc.StatusCode
    too_large = "Task size 17 is larger than maximum input batch size 16"
    assert refused({"x": np.zeros(17, np.float32)}, "total") == (code.INVALID_ARGUMENT, too_large)
    assert over_http("total", [0.0] * 17) == (400, {"error": too_large})
    assert refused({"x": np.float32(1)}, "total") == (
        code.INVALID_ARGUMENT,
        "Batching Run() input tensors must have at least one dimension",
    )
    assert refused({"x": np.zeros((2, 2), np.float32), "word": np.array([b"a"], object)}, "") == (
        code.INVALID_ARGUMENT,
        "Batching Run() input tensors must have equal 0th-dimension size",
    )
    status, body = over_http("total", [1.0])
    assert status == 400
    assert body["error"] in (
        "Batched output tensor has 0 dimensions",
        "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input tensors",
    )


@pytest.mark.tf
def test_a_request_that_the_graph_refuses_spoils_no_other(server: ServerProcess) -> None:
    words = [b"%d" % number for number in range(16)]
    words[5] = b"no number"
    calls = [start(server, "quick", "number", {"word": np.array([word], object)}) for word in words]
    for number, call in enumerate(calls):
        if number == 5:
            with pytest.raises(grpc.RpcError) as refused:
                call.result()
            assert refused.value.details() == "StringToNumberOp could not correctly convert string: no number"
        else:
            assert outputs_of(call)["y"].tolist() == [number]


@pytest.mark.tf
def test_a_graphs_refusal_has_the_words_of_an_unbatched_run(server: ServerProcess, version: Path) -> None:
    # The shape of the client's input stands in the text, and not that of the batch, which is padded to 4 rows.
    inputs = [np.zeros((rows, 3), np.float32) for rows in (1, 2, 3)]
    labels = {"api": "grpc", "model": "quick", "version": "1", "signature": "product", "code": "INVALID_ARGUMENT"}
    told, counts = [], []
    with ServerProcess(model_base_path=version.parent, model_name="quick", version_settle_s=0) as alone:
        for one in (alone.ready(), server):
            calls = [start(one, "quick", "product", {"x": x}) for x in inputs]
            texts = [str((call.code(), call.details())) for call in calls]
            body = {"signature_name": "product", "inputs": inputs[2].tolist()}
            texts.append(one.http.post("/v1/models/quick:predict", json=body).text)
            told.append(texts)
            counts.append(counted(one, "embedding_server_requests_total", **labels))
    assert told[0] == told[1]
    assert [f"In[0]: [{rows},3]" in text for rows, text in zip((1, 2, 3, 3), told[1], strict=True)] == [True] * 4
    assert counts == [3, 3]
    assert server.http.get("/v1/statusz").json()["data_plane"]["forwarded"]["grpc"] == 0


def infer(server: ServerProcess, model: str, rows: int, signatures: dict[str, str]) -> Any:
    """Starts a MultiInference of {signature: method} on Examples without features, each longer than the one before."""
    request = message_class("tensorflow.serving.MultiInferenceRequest")()
    for signature, method in signatures.items():
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = model, signature
    for row in range(rows):
        request.input.example_list.examples.add().features.feature["x"].bytes_list.value.append(b"x" * row)
    call = server.channel.unary_unary("/tensorflow.serving.PredictionService/MultiInference")
    return call.future(request.SerializeToString(), timeout=PATIENCE_S)


@pytest.mark.tf
def test_each_task_of_a_multi_inference_joins_the_batches_of_its_signature(server: ServerProcess) -> None:
    both = {"lengths": "regress", "scores": "classify"}
    runs = counted(server, f"{PREFIX}wrapped_run_count")
    # A batch of the model "full" runs only with 48 rows: three requests of two tasks fill one batch of each signature.
    calls = [infer(server, "full", 16, both) for _ in range(3)]
    response = message_class("tensorflow.serving.MultiInferenceResponse")
    for call in calls:
        regressed, classified = response.FromString(call.result()).results
        lengths = [one.value for one in regressed.regression_result.regressions]
        assert lengths == sorted(set(lengths))
        assert [2 * length for length in lengths] == [
            one.classes[0].score for one in classified.classification_result.classifications
        ]
    assert counted(server, f"{PREFIX}wrapped_run_count") == runs + 2
    with pytest.raises(grpc.RpcError) as refused:
        infer(server, "quick", 17, both).result()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "Task size 17 is larger than maximum input batch size 16"


@pytest.mark.tf
def test_a_large_request_is_split_and_put_together_again(server: ServerProcess) -> None:
    calls = [
        (request, start(server, "split", "wide", {"x": request}))
        for request in (np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32) for n in (1, 5, 33, 64, 2))
    ]
    for request, call in calls:
        assert outputs_of(call)["y"].tolist() == (request * 2).tolist()


@pytest.mark.tf
def test_a_flood_fills_the_queue_and_every_request_is_answered_or_refused(server: ServerProcess) -> None:
    calls = [start(server, "small", "wide", {"x": np.array([n], np.float32)}) for n in range(1000)]
    answered, texts = 0, set()
    for number, call in enumerate(calls):
        try:
            assert outputs_of(call)["y"].tolist() == [2 * number]
            answered += 1
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
            texts.add(str(error.details()))  # type: ignore[attr-defined]
    assert answered > 0
    full = "The batch scheduling queue to which this task was submitted is full; currently 2 batches enqueued and "
    assert texts == {full + "max_enqueued_batches is 2"}
    assert counted(server, "embedding_server_batching_rejected_total", code="UNAVAILABLE") > 0
    assert outputs_of(start(server, "small", "wide", {"x": np.zeros(1, np.float32)}))["y"].tolist() == [0]


@pytest.mark.tf
def test_a_request_whose_client_left_is_not_run(server: ServerProcess) -> None:
    arrived = counted(server, f"{PREFIX}input_batch_size|_count")
    late = start(server, "full", "wide", {"x": np.zeros((1, 7), np.float32)}, timeout_s=0.5)
    with pytest.raises(grpc.RpcError) as told:
        late.result()
    assert told.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    gone = start(server, "full", "wide", {"x": np.zeros((1, 7), np.float32)})
    until(lambda: counted(server, f"{PREFIX}input_batch_size|_count") == arrived + 2)
    gone.cancel()
    runs = counted(server, f"{PREFIX}processed_batch_size|_sum")
    # The batch is full only if the two requests above have left it.
    until(lambda: outputs_of(start(server, "full", "wide", {"x": np.zeros((48, 7), np.float32)}))["y"].shape == (48, 7))
    assert counted(server, f"{PREFIX}processed_batch_size|_sum") == runs + 48


@pytest.mark.tf
def test_requests_that_wait_while_their_model_is_unloaded_or_the_server_stops_are_answered(
    version: Path, tmp_path: Path
) -> None:
    base = tmp_path / "model"
    shutil.copytree(version, base / "1")
    file = tmp_path / "batching.txt"
    file.write_text("max_batch_size { value: 4 } batch_timeout_micros { value: 600000000 }")
    with ServerProcess(
        model_base_path=base,
        version_settle_s=0,
        file_system_poll_wait_seconds=0.1,
        enable_batching="true",
        batching_parameters_file=file,
    ) as server:
        server.ready()

        def waiting(arrived: int) -> list[Any]:
            calls = [start(server, "default", "wide", {"x": np.array([n], np.float32)}) for n in range(3)]
            until(lambda: counted(server, f"{PREFIX}input_batch_size|_count") == arrived)
            assert not any(call.done() for call in calls)
            return calls

        calls = waiting(3)
        shutil.copytree(version, tmp_path / "2")
        (tmp_path / "2").rename(base / "2")
        assert [outputs_of(call)["y"].tolist() for call in calls] == [[0], [2], [4]]
        server.wait_for_log("version state", version=1, state="END")
        calls = waiting(6)
        server.signal(signal.SIGTERM)
        assert [outputs_of(call)["y"].tolist() for call in calls] == [[0], [2], [4]]
        assert server.exit_code() == 0
