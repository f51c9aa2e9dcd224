"""A server tells which rows are hot, keeps them in a file, and has metrics of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.integration.conftest import Serve

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
