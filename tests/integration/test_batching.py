"""A server with batching gives the same answers as one without, to the last bit, in whatever batches requests run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess

MODEL = "default"
NUM_ROWS, DIM = 50, 4
REQUESTS = 40


@pytest.fixture(scope="module")
def folder(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel that works row by row: ragged sums of a table, a dense input, strings; and what is not by row."""
    module = tf.Module()
    rng = np.random.default_rng(7)
    module.table = tf.Variable(rng.normal(size=(NUM_ROWS, DIM)).astype(np.float32))
    ids = tf.TensorSpec([None], tf.int64, "g__values")
    splits = tf.TensorSpec([None], tf.int64, "g__row_splits")
    x, word = tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.string, "word")

    @tf.function(input_signature=[ids, splits, x, word], autograph=False)
    def rowwise(g__values: Any, g__row_splits: Any, x: Any, word: Any) -> Any:
        rows = tf.RaggedTensor.from_row_splits(tf.gather(module.table, g__values), g__row_splits, validate=False)
        hashed = tf.strings.to_hash_bucket_fast(word, 1000)
        return {"sum": tf.reduce_sum(rows, axis=1), "x": 0.1 * x + 2.0, "word": tf.cast(hashed, tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")], autograph=False)
    def total(x: Any) -> Any:
        return {"total": tf.reduce_sum(x), "pair": tf.zeros([2]), "half": 0.5 * x}

    @tf.function(input_signature=[word], autograph=False)
    def number(word: Any) -> Any:
        return {"y": tf.strings.to_number(word)}

    base = tmp_path_factory.mktemp("batching") / "model"
    signatures = {"serving_default": rowwise, "total": total, "number": number}
    tf.saved_model.save(module, str(base / "1"), signatures=signatures)
    return base


@pytest.fixture(scope="module")
def batching(folder: Path) -> Iterator[ServerProcess]:
    """Starts a server that waits 20 ms for more requests in each batch, and pads batches."""
    file = folder.parent / "batching.txt"
    file.write_text("""
      max_batch_size { value: 16 }
      batch_timeout_micros { value: 20000 }
      max_enqueued_batches { value: 100 }
      num_batch_threads { value: 2 }
      allowed_batch_sizes: [4, 8, 16]
    """)
    with ServerProcess(
        model_base_path=folder,
        version_settle_s=0,
        enable_batching="true",
        batching_parameters_file=file,
        grpc_max_threads=24,
    ) as server:
        yield server.ready()


def request_of(number: int) -> dict[str, Any]:
    """Returns random inputs that depend on the request's number."""
    rng = np.random.default_rng(number)
    rows = int(rng.integers(1, 4))
    lengths = rng.integers(0, 5, rows)
    return {
        "g__values": rng.integers(0, NUM_ROWS, int(lengths.sum())).astype(np.int64),
        "g__row_splits": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "x": rng.normal(size=(rows, 2)).astype(np.float32),
        "word": np.array([b"word-%d-%d" % (number, i) for i in range(rows)], object),
    }


@pytest.mark.tf
def test_interleaved_clients_get_the_answers_of_an_unbatched_run(
    batching: ServerProcess, folder: Path, tf: Any
) -> None:
    alone = tf.saved_model.load(str(folder / "1")).signatures["serving_default"]
    requests = [request_of(number) for number in range(REQUESTS)]
    with ThreadPoolExecutor(16) as clients:
        answers = list(clients.map(lambda r: batching.predict_grpc(r, "serving_default"), requests))
    for request, answer in zip(requests, answers, strict=True):
        expected = alone(**{name: tf.constant(array) for name, array in request.items()})
        assert set(answer) == {"sum", "x", "word"}
        for name in answer:
            assert answer[name].tobytes() == expected[name].numpy().tobytes(), name
    lines = batching.http.get("/metrics").text.splitlines()
    values: dict[str, float] = {}
    for line in lines:
        name, _, rest = line.partition("{")
        if rest:
            values[name] = values.get(name, 0) + float(rest.rpartition(" ")[2])
    prefix = ":tensorflow:serving:batching_session:"
    assert values[f"{prefix}input_batch_size_count"] == REQUESTS
    assert 0 < values[f"{prefix}wrapped_run_count"] < REQUESTS, "some ran together"
    assert values[f"{prefix}padding_size_sum"] > 0


@pytest.mark.tf
def test_what_is_refused_is_refused_in_tensorflow_servings_words(batching: ServerProcess) -> None:
    def refused(inputs: dict[str, Any], signature: str) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as error:
            batching.predict_grpc(inputs, signature)
        return error.value.code(), error.value.details()  # type: ignore[attr-defined]

    code = grpc.StatusCode
    assert refused({"x": np.zeros(17, np.float32)}, "total") == (
        code.INVALID_ARGUMENT,
        "Task size 17 is larger than maximum input batch size 16",
    )
    assert refused({"x": np.float32(1)}, "total") == (
        code.INVALID_ARGUMENT,
        "Batching Run() input tensors must have at least one dimension",
    )
    http = batching.http.post(f"/v1/models/{MODEL}:predict", json={"signature_name": "total", "inputs": [1.0]})
    assert (http.status_code, http.json()) in [
        (400, {"error": "Batched output tensor has 0 dimensions"}),
        (
            400,
            {
                "error": "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of "
                "the input tensors"
            },
        ),
    ]


@pytest.mark.tf
def test_a_request_that_the_graph_refuses_spoils_no_other(batching: ServerProcess) -> None:
    words = [b"1", b"2", b"no number", b"4", b"5"]

    def ask(word: bytes) -> list[float] | str:
        try:
            answer: list[float] = batching.predict_grpc({"word": np.array([word], object)}, "number")["y"].tolist()
        except grpc.RpcError as error:
            return str(error.details())  # type: ignore[attr-defined]
        return answer

    with ThreadPoolExecutor(5) as clients:
        one, two, bad, four, five = clients.map(ask, words)
    assert (one, two, four, five) == ([1], [2], [4], [5])
    assert bad == "StringToNumberOp could not correctly convert string: no number"


def test_parameters_that_can_not_be_used_stop_the_start(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "batching.txt"
    file.write_text("allowed_batch_sizes: 2")
    server = serve(enable_batching="true", batching_parameters_file=file)
    assert server.exit_code() == 2
    assert "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 2; expected 1000" in (
        server.text()
    )
    unused = serve(batching_parameters_file=file)
    assert unused.exit_code() == 2
    assert "is set without setting --enable_batching" in unused.text()
