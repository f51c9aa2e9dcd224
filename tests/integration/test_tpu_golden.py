"""Serves models that TensorFlow 2.15's TPUEstimator wrote: both MetaGraphs, over every wire that takes the inputs.

The numbers are TensorFlow 2.15's own: `serve` is what its {serve} graph answered, `serve_tpu_lowered` what the
tensor-core arithmetic of its {serve, tpu} graph gives, where a row of six ids is cut at four.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.native_servable import compile_native
from service.errors import ArtifactError
from service.loading.loader import ServableLoader
from tests.conftest import SHARED
from tests.integration.process import ServerProcess, server_of

pytestmark = pytest.mark.tf

TOLERANCE = {"rtol": 0, "atol": 1e-6}
TAGS = {"serve": frozenset({"serve"}), "tpu": frozenset({"serve", "tpu"})}

# (export, tags) -> the golden file whose numbers the graph must give. Version 2 of the export API wrote the CPU's
# lookup into both graphs, since there was no TPU; the export for CPUs alone has one graph.
ANSWERS = {
    ("cpu", "serve"): "serve",
    ("tpu_v1", "serve"): "serve",
    ("tpu_v1", "tpu"): "serve_tpu_lowered",
    ("tpu_v2", "serve"): "serve",
    ("tpu_v2", "tpu"): "serve",
    ("tpu_sparse", "serve"): "serve",
    ("tpu_sparse", "tpu"): "serve_tpu_lowered",
}
EXAMPLES = [key for key in ANSWERS if key[0] != "tpu_sparse"]
by_export = pytest.mark.parametrize(("export", "tags"), ANSWERS, ids=["-".join(key) for key in ANSWERS])
by_example = pytest.mark.parametrize(("export", "tags"), EXAMPLES, ids=["-".join(key) for key in EXAMPLES])


@pytest.fixture(scope="module")
def golden() -> Path:
    """Returns the folder of the golden exports, which are not part of the repository."""
    folder = SHARED / "golden" / "tpu_estimator_2_15" / "tensor_core"
    if not folder.is_dir():
        pytest.skip("…/shared is not here")
    return folder


@pytest.fixture(scope="module")
def expected(golden: Path) -> Any:
    """Rows and answers."""
    return json.loads((golden / "expected.json").read_text())


@pytest.fixture(scope="module")
def servers(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """Starts a server for each choice of tags; it serves all golden exports that have such a graph."""
    with ExitStack() as stack:
        started = {}
        for name, tags in TAGS.items():
            models = {export: golden / export for export, tagged in ANSWERS if tagged == name}
            folder = tmp_path_factory.mktemp(name)
            started[name] = stack.enter_context(
                server_of(models, folder, saved_model_tags=",".join(sorted(tags)), graph_signatures="auto")
            )
        yield started


@pytest.fixture(scope="module")
def examples(tf: Any, expected: Any) -> list[bytes]:
    """Returns the expected file's rows as serialized tf.Examples."""

    def example(row: dict[str, list[int]]) -> bytes:
        ids = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=value)) for name, value in row.items()}
        return bytes(tf.train.Example(features=tf.train.Features(feature=ids)).SerializeToString())

    return [example(row) for row in expected["rows"]]


def inputs_of(export: str, expected: Any, examples: list[bytes]) -> dict[str, np.ndarray]:
    """Returns the expected file's rows as the input tensors of an export's signature."""
    if export != "tpu_sparse":
        return {"examples": np.array(examples, object)}
    inputs = {}
    for name in "abc":
        rows = [row[name] for row in expected["rows"]]
        inputs[f"{name}__values"] = np.array([i for row in rows for i in row], np.int64)
        inputs[f"{name}__row_splits"] = np.cumsum([0, *map(len, rows)])
    return inputs


def check(outputs: Any, answer: Any) -> None:
    """Compares all outputs of an export with the answers of TensorFlow 2.15."""
    assert set(outputs) == {"embedding", "score"}
    for name, array in outputs.items():
        np.testing.assert_allclose(np.array(array, np.float32), np.array(answer[name], np.float32), **TOLERANCE)


def test_the_two_answers_differ_where_a_row_is_cut(expected: Any) -> None:
    serve, tensor_core = (np.array(expected[name]["embedding"]) for name in ("serve", "serve_tpu_lowered"))
    rows = np.abs(serve - tensor_core).max(axis=1) > 1e-3
    assert rows.tolist() == [len(row["c"]) > 4 for row in expected["rows"]]
    assert rows.any()


@by_export
def test_grpc(servers: dict[str, ServerProcess], expected: Any, examples: list[bytes], export: str, tags: str) -> None:
    inputs = inputs_of(export, expected, examples)
    check(servers[tags].predict_grpc(inputs, "serving_default", model=export), expected[ANSWERS[export, tags]])


def predict(server: ServerProcess, model: str, **body: Any) -> Any:
    """Posts a request to predict and returns the answer; fails on an error."""
    response = server.http.post(f"/v1/models/{model}:predict", json=body)
    assert response.status_code == 200, response.text
    return response.json()


@by_example
def test_http_examples(
    servers: dict[str, ServerProcess], expected: Any, examples: list[bytes], export: str, tags: str
) -> None:
    instances = [{"b64": base64.b64encode(example).decode()} for example in examples]
    answer = predict(servers[tags], export, instances=instances)
    columns = {name: [row[name] for row in answer["predictions"]] for name in answer["predictions"][0]}
    check(columns, expected[ANSWERS[export, tags]])


@pytest.mark.parametrize("tags", TAGS)
def test_http_sparse_inputs_are_lists_of_ids(servers: dict[str, ServerProcess], expected: Any, tags: str) -> None:
    answer_of = expected[ANSWERS["tpu_sparse", tags]]
    answer = predict(servers[tags], "tpu_sparse", instances=expected["rows"])
    check({name: [row[name] for row in answer["predictions"]] for name in ("embedding", "score")}, answer_of)
    columns = {name: [row[name] for row in expected["rows"]] for name in "abc"}
    check(predict(servers[tags], "tpu_sparse", inputs=columns)["outputs"], answer_of)


def test_the_server_itself_by_its_flag(golden: Path, expected: Any, examples: list[bytes]) -> None:
    flags = {
        "model_base_path": golden / "tpu_v1",
        "saved_model_tags": "serve,tpu",
    }
    with ServerProcess(**flags) as server:
        server.ready()
        outputs = server.predict_grpc({"examples": np.array(examples, object)}, "serving_default")
        check(outputs, expected["serve_tpu_lowered"])
        signature = server.http.get("/v1/models/default/metadata").json()["metadata"]["signature_def"]["signature_def"]
        # The metadata are those of the TPU MetaGraph, whose outputs TPUEstimator wrote without shapes.
        assert signature["serving_default"]["inputs"]["examples"]["name"] == "examples:0"
        assert signature["serving_default"]["outputs"]["score"] == {
            "dtype": "DT_FLOAT",
            "tensor_shape": {"dim": [], "unknown_rank": True},
            "name": "TPUPartitionedCall:3",
        }


def test_tags_that_are_not_there_are_refused_with_those_that_are(golden: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no meta graph tagged \{serve, tpu\}\. Tags it has: \{serve\}\."):
        ServableLoader(TAGS["tpu"], "auto", compile_native)("m", 1, golden / "cpu" / "1")
    with pytest.raises(ArtifactError, match=r"tagged \{gpu, serve\}\. Tags it has: \{serve\}; \{serve, tpu\}\."):
        ServableLoader(frozenset({"serve", "gpu"}), "auto", compile_native)("m", 1, golden / "tpu_v1" / "1")
