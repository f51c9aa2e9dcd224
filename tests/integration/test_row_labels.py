"""Labels of rows go with the version from the export to the answers, and unknown keys are counted on all protocols."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from embedding_client.client import EmbeddingClient
from embedding_client.errors import InvalidRequest
from model_export.parity.integrity import integrity_faults
from service.artifact.manifest import MANIFEST_PATH
from tests.integration.conftest import ModelExport
from tests.integration.process import ROOT, ServerProcess, environment
from tests.toy_model import manifest_of, rewrite_manifest

pytestmark = pytest.mark.tf

FILM = "/v1/models/default/tables/film"
TITLES = ["", "Alien (1979)", "Star Wars (1977)", "Empire (1980)", "Brazil (1985)"]
ROWS = np.array([[0, 0], [1, 0], [0, 1], [0.1, 1], [-1, 0]], np.float32)


def import_model(model_export: ModelExport, folder: Path, *flags: str) -> tuple[int, str]:
    """Imports a table of films with labels, and one of genres with keys; returns the status and the output."""
    np.save(folder / "film.npy", ROWS)
    np.save(folder / "genre.npy", ROWS[:3])
    (folder / "genres.txt").write_text("Action\nComedy\nDrama\n")
    tables = [f"--table=film={folder}/film.npy", f"--table=genre={folder}/genre.npy"]
    keys = [f"--keys=genre={folder}/genres.txt", "--feature=genres=genre:mean", "--oov=genre=zero"]
    return model_export("import", "--out", folder / "m", *flags, *tables, *keys)


@pytest.fixture(scope="module")
def base(model_export: ModelExport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a model with labels."""
    folder = tmp_path_factory.mktemp("labels")
    (folder / "films.csv").write_text("film_id,genre,title\n" + "".join(f"{i},x,{t}\n" for i, t in enumerate(TITLES)))
    status, told = import_model(model_export, folder, f"--labels=film={folder}/films.csv#title")
    assert status == 0, told
    return folder / "m"


@pytest.fixture(scope="module")
def server(base: Path) -> Iterator[ServerProcess]:
    """Serves the model with labels."""
    with ServerProcess(model_base_path=base) as process:
        yield process.ready()


def test_the_files_are_plain_and_the_manifest_names_them(base: Path) -> None:
    manifest = manifest_of(base / "1")
    assert json.loads((base / "1" / MANIFEST_PATH).read_text())["format_version"] == 5
    assert (base / "1" / manifest.labels["film"].file).read_text().split("\n")[:-1] == TITLES
    assert manifest.labels["film"].file in manifest.files and integrity_faults(base / "1", manifest) == []
    command = [sys.executable, "-m", "model_export", "inspect", str(base / "1"), "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["tables"]


def test_rows_have_labels_only_on_request(server: ServerProcess) -> None:
    plain = server.http.post(f"{FILM}:rows", json={"ids": [2, 0, 2]}).json()
    assert plain == {"rows": [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]}
    named = server.http.post(f"{FILM}:rows", json={"labels": True, "ids": [2, 0, 2]}).json()
    assert named == {**plain, "labels": ["Star Wars (1977)", None, "Star Wars (1977)"]}
    keys = server.http.post("/v1/models/default/tables/genre:rows", json={"ids": [1], "labels": True}).json()
    assert keys["labels"] == ["Comedy"]
    assert server.http.post(f"{FILM}:rows", json={"ids": [1], "labels": False}).json() == {"rows": [[1.0, 0.0]]}
    for wrong, told in (
        ({"labels": True}, '"ids" is missing.'),
        ({"ids": [1], "labels": 1}, '"labels" must be true or false.'),
        (
            {"ids": [1], "label": True},
            (
                "Unknown key: label. A :rows request has: ids, a list of row ids; labels, true or false. "
                "Did you mean labels?"
            ),
        ),
    ):
        refused = server.http.post(f"{FILM}:rows", json=wrong)
        assert (refused.status_code, refused.json()["error"]) == (400, told)


def test_the_films_that_are_nearest_to_one_by_its_title(server: ServerProcess) -> None:
    asked = {"labels": ["Star Wars (1977)"], "k": 2, "metric": "cosine"}
    found = server.http.post(f"{FILM}:neighbors", json=asked).json()
    assert found["labels"][0][0] == "Empire (1980)"
    by_id = server.http.post(f"{FILM}:neighbors", json={"ids": [2], "k": 2, "metric": "cosine"}).json()
    assert "labels" not in by_id and by_id["ids"] == found["ids"]
    refused = server.http.post(f"{FILM}:neighbors", json={"labels": ["Star Wars"]})
    assert refused.status_code == 400
    assert refused.json()["error"] == ('table "film": no row has the label "Star Wars". There are: "Star Wars (1977)".')
    misspelt = server.http.post("/v1/models/default/tables/genre:neighbors", json={"keys": ["Comdy"]})
    assert misspelt.json()["error"] == (
        'table "genre": key \'Comdy\' at position 0 is not in its vocabulary. There are: "Comedy".'
    )
    for target in (f"127.0.0.1:{server.grpc_port}", f"http://127.0.0.1:{server.http_port}"):
        with EmbeddingClient(target, model="default", timeout_s=20) as client:
            by_label = client.neighbors("film", labels=["Star Wars (1977)", "Alien (1979)"], k=1)
            assert by_label.labels.tolist() == [["Empire (1980)"], ["Empire (1980)"]]
            named = client.neighbors("film", ids=[2], k=5, labels=True)
            assert named.labels[0, :4].tolist() == ["Empire (1980)", "", "Alien (1979)", "Brazil (1985)"]
            assert client.neighbors("film", ids=[2], k=1).labels is None
            with pytest.raises(InvalidRequest, match='There are: "Star Wars'):
                client.neighbors("film", labels=["Star Wars"])


def test_people_see_labels(server: ServerProcess) -> None:
    page = server.http.get(f"{FILM}:page?start=1&count=2").json()
    assert (page["labels"], page["keys"]) == (TITLES[1:3], [])
    assert server.http.get(f"{FILM}:row?id=2").json()["label"] == "Star Wars (1977)"
    star_wars = {"id": 2, "label": "Star Wars (1977)"}
    found = server.http.get(f"{FILM}:find?label=STAR").json()
    assert found == {"rows": [star_wars | {"by": "label"}]}
    genre = "/v1/models/default/tables/genre:find"
    for path, row in (
        (f"{FILM}:find?text=STAR", star_wars | {"by": "label"}),
        (f"{FILM}:find?text=2", star_wars | {"by": "row id"}),
        (f"{genre}?text=Comedy", {"id": 1, "label": "Comedy", "by": "key of genres"}),
    ):
        assert server.http.get(path).json()["rows"][0] == row, path
    assert server.http.get(f"{genre}?text=Komedy").json() == {"rows": []}
    tables = server.http.get("/v1/models/default/tables").json()["tables"]
    assert {one["name"]: one["unknown_key_rows"] for one in tables} == {"film": [], "genre": []}
    names = server.http.get("/v1/models/default/tables/genre:names").json()
    while names == {"state": "computing"}:
        names = server.http.get("/v1/models/default/tables/genre:names").json()
    assert names["labels"] == ["Action", "Comedy", "Drama", *names["labels"][3:]]
    assert names["keys"]["genres"][:3] == ["Action", "Comedy", "Drama"]
    for _ in range(200):
        server.http.post("/v1/models/default:lookup", json={"features": {"film": [2] * 16}})
    hot = server.http.get(f"{FILM}:hot").json()
    assert [(row["id"], row["label"]) for row in hot["rows"]] == [(2, "Star Wars (1977)")]
    refused = server.http.get("/v1/models/default/tables/film:find")
    assert refused.status_code == 400 and "Give a text as label" in refused.json()["error"]


def test_unknown_keys_are_counted_on_all_protocols(server: ServerProcess) -> None:
    def header(body: dict[str, Any], path: str = ":lookup") -> str | None:
        response = server.http.post(f"/v1/models/default{path}", json=body)
        assert response.status_code == 200, response.text
        value: str | None = response.headers.get("x-unknown-keys")
        return value

    assert header({"features": {"genres": [["Komedy", "Drama"], ["Komedy", "x"]], "film": [1]}}) == "genres=3"
    assert header({"features": {"genres": [["Comedy"]]}}) is None
    inputs = {"genres__values": ["Komedy", "Drama"], "genres__row_splits": [0, 2]}
    assert header({"signature_name": "lookup", "inputs": inputs}, ":predict") == "genres=1"
    tensors = [
        {"name": "genres__values", "shape": [2], "datatype": "BYTES", "data": ["Komedy", "Drama"]},
        {"name": "genres__row_splits", "shape": [2], "datatype": "INT64", "data": [0, 2]},
    ]
    asked = {"inputs": tensors, "parameters": {"signature_name": "lookup"}}
    answer = server.http.post("/v2/models/default/infer", json=asked)
    assert answer.status_code == 200 and answer.headers.get("x-unknown-keys") == "genres=1", answer.text
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for keys, told in (([b"Komedy", b"Drama"], "genres=1"), ([b"Drama", b"Drama"], None)):
            call = _predict(channel, keys)
            assert dict(call.trailing_metadata()).get("x-unknown-keys") == told


def _predict(channel: grpc.Channel, keys: list[bytes]) -> Any:
    from tensorflow_serving.apis import predict_pb2

    from loadtest.foreign.frameworks import tf

    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "default", "lookup"
    request.inputs["genres__values"].CopyFrom(tf.make_tensor_proto(keys))
    request.inputs["genres__row_splits"].CopyFrom(tf.make_tensor_proto([0, 2], tf.int64))
    method = channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        request_serializer=predict_pb2.PredictRequest.SerializeToString,
        response_deserializer=predict_pb2.PredictRequest.FromString,
    )
    return method.with_call(request)[1]


def test_a_label_file_that_does_not_fit_is_named(model_export: ModelExport, tmp_path: Path, base: Path) -> None:
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    for table, text in (
        ("film", "has 2 labels, table 'film' has 5 rows"),
        ("user", "there is no table 'user', only 'film', 'genre'"),
    ):
        status, told = import_model(model_export, tmp_path, f"--labels={table}={tmp_path}/few.txt")
        assert status == 1 and text in told, told
        assert not (tmp_path / "m").exists()
    damaged = tmp_path / "m"
    subprocess.run(["cp", "-r", base, damaged], check=True)
    starts = damaged / "1/assets.extra/labels/0-film.starts"
    starts.write_bytes(starts.read_bytes()[:-8])
    rewrite_manifest(
        damaged / "1", lambda data: data["files"].update({starts.relative_to(damaged / "1").as_posix(): 40})
    )
    with ServerProcess(model_base_path=damaged, max_num_load_retries=0) as server:
        entry = server.wait_for_log("load failed")
    assert "has places for 4 labels, and table 'film' has 5 rows" in json.dumps(entry)
