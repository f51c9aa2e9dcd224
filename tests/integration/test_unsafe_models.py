"""A SavedModel is code: models that read or write a file are refused when a reload request adds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.versions.model_config import UNTOLD
from tests.integration.conftest import Serve
from tests.integration.process import ServerProcess, until
from tests.integration.test_models import reload

pytestmark = pytest.mark.tf


@pytest.fixture
def folder(tf: Any, tmp_path: Path) -> Path:
    """Writes three models: "plain" has a table, "reads" answers with a file's text, "writes" writes it at its load."""
    (tmp_path / "secret").write_text("hunter2")

    def save(name: str, run: Any, module: Any) -> None:
        signature = tf.function(run, input_signature=[tf.TensorSpec([None], tf.int64, "ids")])
        tf.saved_model.save(module, str(tmp_path / "models" / name / "1"), signature.get_concrete_function())

    plain = tf.Module()
    plain.rows = tf.Variable(np.arange(6, dtype=np.float32).reshape(3, 2))
    save("plain", lambda ids: {"rows": tf.gather(plain.rows, ids)}, plain)
    secret = str(tmp_path / "secret")
    save("reads", lambda ids: {"text": tf.fill(tf.shape(ids), tf.io.read_file(secret))}, tf.Module())
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        ids = v1.placeholder(v1.int64, [None], "ids")
        builder = v1.saved_model.Builder(str(tmp_path / "models" / "writes" / "1"))
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def(
            {"ids": info(ids)}, {"ids": info(v1.identity(ids))}, "tensorflow/serving/predict"
        )
        write = v1.io.write_file(str(tmp_path / "written"), "x")
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, main_op=v1.group(write)
        )
        builder.save()
    return tmp_path


def predict(server: ServerProcess, name: str) -> Any:
    return server.http.post(f"/v1/models/{name}:predict", json={"inputs": [1]}).json()


def entries(folder: Path, *names: str) -> list[dict[str, str]]:
    return [{"name": name, "base_path": str(folder / "models" / name)} for name in names]


def test_a_request_adds_no_model_that_touches_files(serve: Serve, folder: Path) -> None:
    settings = {"graph_signatures": "auto", "max_num_load_retries": 0, "admin_port": "auto"}
    server = serve(model_name="plain", model_base_path=folder / "models" / "plain", **settings).ready()
    for name, op in (("reads", "ReadFile"), ("writes", "WriteFile")):
        refused = f"1 model(s) did not become available: {{{{{{name: {name}}} due to error: {UNTOLD}}}, }}"
        assert reload(server, *entries(folder, "plain", name)) == ("UNKNOWN", refused)
        assert f"runs {op} (node" in server.wait_for_log("load failed", model=name)["reason"]
        listed = "".join(f"config {{ {_text(one)} }}" for one in entries(folder, "plain", name))
        answer = httpx.post(
            f"http://127.0.0.1:{server.admin_port}/v1/config:reload",
            content=f"model_config_list {{ {listed} }}",
            timeout=120,
        )
        assert f"runs {op} (node" in answer.json()["error"] and "--refuse_unsafe_ops" in answer.json()["error"]
    assert not (folder / "written").exists()
    assert predict(server, "plain") == {"outputs": [[2.0, 3.0]]}
    # A plain model that a request adds is served, although its graph restores variables and can save them.
    copy = [*entries(folder, "plain"), {"name": "more", "base_path": str(folder / "models" / "plain")}]
    assert reload(server, *copy) == ("0", "")
    assert predict(server, "more") == {"outputs": [[2.0, 3.0]]}


def _text(entry: dict[str, str]) -> str:
    return " ".join(
        f"{name}: {json.dumps(value)}" for name, value in (entry | {"model_platform": "tensorflow"}).items()
    )


def test_the_operators_models_may_touch_files_unless_all_are_refused(serve: Serve, folder: Path) -> None:
    config = folder / "models.conf"
    listed = "".join(f"config {{ {_text(one)} }}" for one in entries(folder, "plain", "reads", "writes"))
    config.write_text(f"model_config_list {{ {listed} }}")
    settings = {"graph_signatures": "auto", "model_base_path": "", "model_config_file": config}
    server = serve("--strict_readiness", **settings).answering()
    until(lambda: server.http.get("/readyz").status_code == 200)
    # This is what the check is for: the model answers with a file of the server, and its load has written one.
    assert predict(server, "reads") == {"outputs": ["hunter2"]}
    assert (folder / "written").read_text() == "x"
    (folder / "written").unlink()
    # The operator's model stays the operator's in a request that lists it again.
    assert reload(server, *entries(folder, "plain", "reads")) == ("0", "")

    strict = serve(refuse_unsafe_ops="on", max_num_load_retries=0, **settings).answering()
    problems = strict.http.get("/readyz").json()["problems"]
    assert set(problems) == {"reads", "writes"}
    assert "signature 'serving_default' runs ReadFile (node" in problems["reads"]
    assert "runs WriteFile (node" in problems["writes"]
    assert predict(strict, "plain") == {"outputs": [[2.0, 3.0]]}
    assert not (folder / "written").exists()
