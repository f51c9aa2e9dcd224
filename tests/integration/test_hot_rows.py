"""Hot rows and recorded requests: counted, written, and used by the next version."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exposition import read_exposition
from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until
from tests.toy_model import write_toy_model

HOT = "/v1/models/default/tables/{}:hot"


def test_hot_rows_over_http_in_a_file_and_in_metrics(serve: Serve, tmp_path: Path) -> None:
    server = serve(hot_rows_dir=tmp_path / "hot").ready()
    # A request has 32 ids of table "user", of which 24 are row 3. The first 65,536 ids are all counted.
    body = {"features": {"user": [3] * 24 + [1] * 8, "tags_sum": [["red", "red", "absent"]]}}
    for _ in range(400):
        assert server.http.post("/v1/models/default:lookup", json=body).status_code == 200
    found = server.http.get(HOT.format("user")).json()
    assert (found["model"], found["version"], found["table"], found["distinct"]) == ("default", 1, "user", 2)
    assert found["sampled"] == found["lookups"] == 12_800
    assert [(row["id"], row["lookups"]) for row in found["rows"]] == [(3, 9600), (1, 3200)]
    (version,) = server.http.get("/v1/statusz").json()["models"]["default"]["versions"]
    assert {table["table"]: table["ids"] for table in version["tables"]}["user"] == found["lookups"]
    assert found["features"]["user"] == {"ids": 12_800, "unknown_ids": 0, "default_ids": 0}
    tags = server.http.get("/v1/models/default/versions/1/tables/tag:hot?k=1").json()
    assert (tags["rows"][0]["id"], tags["rows"][0]["key"], len(tags["rows"])) == (1, "red", 1)
    assert tags["oov_keys"] == 400 and tags["features"]["tags_sum"]["ids"] == 1200
    for query, text in (("?k=0", "from 1 to 2000"), ("?k=x", "from 1 to 2000"), ("?k=2001", "from 1 to 2000")):
        response = server.http.get(HOT.format("user") + query)
        assert response.status_code == 400 and text in response.json()["error"]
    absent = server.http.get(HOT.format("absent"))
    assert absent.status_code == 404 and 'has no table "absent". Tables: tag, user.' in absent.json()["error"]
    metrics = server.http.get("/metrics").text
    shares = [line for line in metrics.splitlines() if line.startswith("embedding_server_table_hot_share{")]
    assert len(shares) == 8 and any('table="user",version="1",top="10"} 1.0' in line for line in shares)
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    rows = [json.loads(line) for line in (tmp_path / "hot" / "default" / "1.jsonl").read_text().splitlines()]
    assert {(row["table"], row["id"]) for row in rows} >= {("user", 3), ("user", 1), ("tag", 1)}
    # A new server reads these hot rows from the file while it loads the version.
    again = serve(hot_rows_dir=tmp_path / "hot").ready()
    assert again.wait_for_log("read hot rows")["rows"] == len(rows)


def test_without_sampling_there_is_an_error(serve: Serve) -> None:
    server = serve(hot_rows="false").ready()
    response = server.http.get(HOT.format("user"))
    assert response.status_code == 501 and "--hot_rows" in response.json()["error"]
    assert "embedding_server_table_hot_share" not in server.http.get("/metrics").text


RECORDS = "embedding_server_request_log_records_total"


def config(folder: Path, base: Path, rate: float = 1.0) -> Path:
    """Writes the list of models: one, whose requests are kept below folder."""
    path = folder / "models.conf"
    log = f'log_collector_config {{ filename_prefix: "{folder}/log/toy" }} sampling_config {{ sampling_rate: {rate} }}'
    entry = f'name: "toy" base_path: "{base}" model_platform: "tensorflow" logging_config {{ {log} }}'
    path.write_text(f"model_config_list {{ config {{ {entry} }} }}")
    (folder / "log").mkdir(exist_ok=True)
    return path


def metric(server: ServerProcess, name: str) -> float:
    """Returns the value of a metric about the toy model."""
    return read_exposition(server.http.get("/metrics").text)[name].value(model="toy")


def ask_on_both_wires(server: ServerProcess) -> None:
    """Sends three requests, each of which the direct path would answer: gRPC Predict, :lookup and :predict."""
    inputs: dict[str, Any] = {
        "user": np.array([1, 2]),
        "tags__values": np.array([3, 1, 2]),
        "tags__row_splits": np.array([0, 2, 3]),
    }
    answer = server.predict_grpc(inputs, "lookup", model="toy")
    np.testing.assert_array_equal(answer["user"], [[1, 10], [2, 20]])
    assert server.lookup({"user": [4]}, model="toy") == {"user": [[4, 40]]}
    body = {"signature_name": "lookup", "inputs": {"user": [3]}}
    response = server.http.post("/v1/models/toy:predict", json=body)
    assert response.json() == {"outputs": [[3, 30]]}


def test_what_was_recorded_warms_the_next_version_up(base: Path, tmp_path: Path, serve: Serve) -> None:
    server = serve(f"--model_config_file={config(tmp_path, base)}", model_base_path="").ready()
    for _ in range(4):
        ask_on_both_wires(server)
    until(lambda: metric(server, RECORDS) == 12)
    (part,) = (tmp_path / "log").iterdir()
    assert part.name.endswith(".tfrecord.part")
    hidden = tmp_path / "incoming"
    write_toy_model(hidden, scale=2)
    shutil.copy(part, hidden / "assets.extra/tf_serving_warmup_requests")
    hidden.rename(base / "2")
    replayed = server.wait_for_log("replayed warm-up requests", records=12)
    assert replayed["skipped"] == 0
    until(lambda: server.tells({"user": [4]}, {"user": [[8, 80]]}, model="toy"))
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    (done,) = (tmp_path / "log").iterdir()
    assert done.name == part.name.removesuffix(".part")


def test_the_core_answers_what_is_drawn_for_the_log(base: Path, tmp_path: Path, serve: Serve) -> None:
    server = serve(f"--model_config_file={config(tmp_path, base, rate=0.3)}", model_base_path="").ready()
    plane = server.http.get("/v1/statusz").json()["data_plane"]
    if plane["kind"] != "native":
        pytest.skip("there is no core")
    for _ in range(40):
        ask_on_both_wires(server)
        assert server.http.post("/v1/models/toy:lookup", json={"features": {"user": [99]}}).status_code == 400
    after = server.http.get("/v1/statusz").json()["data_plane"]
    # The core forwarded one of the two requests for the status page.
    assert sum(after["forwarded"].values()) - sum(plane["forwarded"].values()) == 1
    # Each of 120 answered requests is sampled with probability 0.3: the limits are left once in 10**8 runs.
    until(lambda: 10 <= metric(server, RECORDS) <= 66)
    assert metric(server, "embedding_server_request_log_dropped_total") == 0


@pytest.mark.tf
def test_tensorflow_reads_the_records(base: Path, tmp_path: Path, serve: Serve, tf: Any) -> None:
    prediction_log = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    flags = [f"--model_config_file={config(tmp_path, base)}"]
    server = serve(*flags, model_base_path="").ready()
    ask_on_both_wires(server)
    until(lambda: metric(server, RECORDS) == 3)
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    paths = sorted(str(path) for path in (tmp_path / "log").glob("*.tfrecord"))
    logs = [prediction_log.PredictionLog.FromString(data.numpy()) for data in tf.data.TFRecordDataset(paths)]
    read = [
        (
            {name: tf.make_ndarray(tensor).tolist() for name, tensor in log.predict_log.request.inputs.items()},
            tf.make_ndarray(log.predict_log.response.outputs["user"]).tolist(),
        )
        for log in logs
    ]
    assert sorted(read, key=lambda pair: pair[1]) == [
        (
            {"user": [1, 2], "tags__values": [3, 1, 2], "tags__row_splits": [0, 2, 3]},
            [[1, 10], [2, 20]],
        ),
        ({"user": [3]}, [[3, 30]]),
        ({"user": [4]}, [[4, 40]]),
    ]
    assert {log.predict_log.request.model_spec.signature_name for log in logs} == {"lookup"}


def test_a_full_disk_ends_the_log_and_no_request(base: Path, tmp_path: Path, serve: Serve) -> None:
    server = serve(f"--model_config_file={config(tmp_path, base)}", model_base_path="").ready()
    ask_on_both_wires(server)
    until(lambda: metric(server, RECORDS) == 3)
    (part,) = (tmp_path / "log").iterdir()
    size = part.stat().st_size
    # RLIMIT_FSIZE makes each later write to the log fail after at most 10 bytes, as on a full disk.
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 10, size + 10))
    for _ in range(3):
        ask_on_both_wires(server)
    server.wait_for_log("request log is disabled", model="toy", level="error")
    until(lambda: metric(server, "embedding_server_request_log_dropped_total") == 9)
    assert metric(server, "embedding_server_request_log_disabled") == 1
    assert metric(server, RECORDS) == 3
    assert part.stat().st_size == size
    assert len([record for record in server.records if record["message"] == "request log is disabled"]) == 1
