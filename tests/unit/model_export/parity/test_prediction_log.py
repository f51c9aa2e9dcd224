"""Files of predictions have TensorFlow Serving's format, and its own package reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_export.errors import ExportError
from model_export.export_model import export
from service.artifact.manifest import LookupDevice
from tests.toy_model import manifest_of

pytestmark = pytest.mark.tf

BOTH: tuple[LookupDevice, ...] = ("cpu", "tpu_tensor_core")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports an artifact with every kind of signature; tests must not change it."""
    from tests.unit.model_export.exporter.table_source import TWO_FEATURES, TableSource

    base = tmp_path_factory.mktemp("log")
    return export(TableSource(TWO_FEATURES), base, lookup_device=BOTH, batch_sizes=(2, 4))


def stock_logs(path: Path) -> list[Any]:
    """Returns the records as tensorflow-serving-api reads them."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    return [prediction_log_pb2.PredictionLog.FromString(record) for record in records]


def test_warm_up_requests_cover_every_signature_and_every_batch_size(artifact: Path) -> None:
    import tensorflow as tf

    logs = stock_logs(artifact / "assets.extra/tf_serving_warmup_requests")
    assert {log.WhichOneof("log_type") for log in logs} == {"predict_log"}
    requests = [log.predict_log.request for log in logs]
    assert [request.model_spec.signature_name for request in requests] == [
        "lookup",
        "lookup_tpu_tensor_core",
        "lookup_tpu_tensor_core",
        "serving_default",
        "examples",
    ]
    rows = [len(tf.make_ndarray(request.inputs["a"])) for request in requests[:3]]
    assert rows == [1, 2, 4]
    assert requests[1].inputs["b__values"].dtype == tf.int32 and requests[0].inputs["b__values"].dtype == tf.int64
    assert tf.make_ndarray(requests[0].inputs["b__weights"]).shape == (0,)


def test_a_session_answers_every_warm_up_request(artifact: Path) -> None:
    # TensorFlow Serving replays these requests before it serves a version, and fails the load if one of them fails.
    import tensorflow as tf

    logs = stock_logs(artifact / "assets.extra/tf_serving_warmup_requests")
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(artifact))
        for log in logs:
            request = log.predict_log.request
            definition = graph.signature_def[request.model_spec.signature_name]
            feeds = {definition.inputs[name].name: tf.make_ndarray(t) for name, t in request.inputs.items()}
            assert set(request.inputs) == set(definition.inputs)
            session.run({name: info.name for name, info in definition.outputs.items()}, feeds)


def test_recorded_predictions_hold_requests_and_the_models_answers(artifact: Path) -> None:
    import tensorflow as tf

    logs = stock_logs(artifact / "assets.extra/recorded_predictions")
    assert [log.predict_log.request.model_spec.signature_name for log in logs] == 3 * ["serving_default"] + 3 * [
        "examples"
    ]
    for log in logs:
        (score,) = log.predict_log.response.outputs.values()
        inputs = log.predict_log.request.inputs
        rows = len(tf.make_ndarray(inputs["a"] if "a" in inputs else inputs["examples"]))
        assert tf.make_ndarray(score).shape == (rows,) and rows in (1, 17, 64)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    from model_export.parity.prediction_log import LoggedPrediction, read_predictions, write_predictions

    strings = np.array([b"\xff\x00", b""], object)
    inputs = {"s": strings, "none": np.array([], object), "i": np.array([[1, 2]], np.int32)}
    first = LoggedPrediction("a", inputs, {"y": np.array([0.5], np.float32)})
    assert write_predictions(tmp_path / "log" / "file", [first, LoggedPrediction("b", {})]) == 2
    got = list(read_predictions(tmp_path / "log" / "file"))
    assert [(p.signature, p.outputs is None) for p in got] == [("a", False), ("b", True)]
    assert {name: array.tolist() for name, array in got[0].inputs.items()} == {
        "s": [b"\xff\x00", b""],
        "none": [],
        "i": [[1, 2]],
    }
    assert got[0].inputs["i"].dtype == np.int32 and got[0].outputs is not None
    assert got[0].outputs["y"].tolist() == [0.5]
    path = tmp_path / "log" / "file"
    data = path.read_bytes()
    for damaged in (data[:-1], data[:20] + b"?" + data[21:]):
        path.write_bytes(damaged)
        with pytest.raises(ExportError, match="file is cut off or damaged: (truncated|corrupted) record at"):
            list(read_predictions(path))


def test_the_manifest_counts_both_files(artifact: Path) -> None:
    manifest = manifest_of(artifact)
    assert {name for name in manifest.files if name.startswith("assets.extra/")} == {
        "assets.extra/recorded_predictions",
        "assets.extra/tf_serving_warmup_requests",
    }
