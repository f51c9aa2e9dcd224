"""Runs the examples that users copy, the demo's requests, the load test and the benchmark on an exported model."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.process import ROOT, ServerProcess, environment, unused_ports
from tests.openapi_document import check_documented

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def server(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server with TensorFlow over the demo's model."""
    config = tmp_path_factory.mktemp("examples") / "models.config"
    model = f'name: "movielens" base_path: "{demo_model}" model_platform: "tensorflow"'
    label = 'version_labels { key: "stable" value: 1 }'
    config.write_text(f"model_config_list {{ config {{ {model} {label} }} }}")
    settings = {"model_config_file": config, "graph_signatures": "auto"}
    with ServerProcess("--allow_version_labels_for_unavailable_models", **settings) as server:
        yield server.ready()


def run(*arguments: str) -> str:
    """Runs Python in the repository's root; returns what it printed, and fails where it failed."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_request_of_the_demo_is_answered(demo_model: Path) -> None:
    port, rest_api_port = unused_ports(2)
    ports = (f"--port={port}", f"--rest_api_port={rest_api_port}")
    shown = run("examples/demo.py", "--check", f"--model_base_path={demo_model}", *ports)
    assert '{"embeddings":{"genres":[[' in shown
    assert re.search(r'\{"rows":\[\[-?\d', shown)
    assert "nearest to Synthetic film 50, by name" in shown
    assert re.search(r'"labels":\[\["Synthetic film \d+",', shown)
    (over_http,) = re.findall(r'\{"predictions":\[([\d.]+),([\d.]+)\]\}', shown)
    (over_grpc,) = re.findall(r"model version 1, ratings \[([\d.]+), ([\d.]+)\]", shown)
    assert [float(x) for x in over_http] == pytest.approx([float(x) for x in over_grpc], rel=1e-6)


def test_every_example_of_the_api_page_is_answered(server: ServerProcess) -> None:
    http, tried = server.http, 0
    document = http.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            url = path
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path":
                    url = url.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
            queries = [one for one in operation.get("parameters", ()) if one["in"] == "query"]
            params = {one["name"]: one["example"] for one in queries if "example" in one}
            body = operation.get("requestBody")
            examples = body["content"]["application/json"]["examples"].values() if body else [{"value": None}]
            for example in examples:
                response = http.request(method, url, params=params, json=example["value"])
                if path.endswith((":classify", ":regress")):
                    # The demo's model has no signature for these, which is looked for after the body is read.
                    assert response.status_code == 400, response.text
                    assert "No signature was found" in response.text or "Expected one input" in response.text
                    continue
                # A thread computes the map of a table and its colours, so the first answers may be 202.
                expected = (200, 202) if path.endswith((":projection", ":drift", ":names")) else (200,)
                assert response.status_code in expected, f"{method} {url} {example['value']}: {response.text}"
                check_documented(document, operation, response)
                tried += 1
            # A body without its required keys is refused by the routes for data, and the refusal is documented too.
            if path.endswith((":lookup", ":predict", ":classify", ":regress", ":rows", "/infer")):
                response = http.request(method, url, json={})
                assert response.status_code == 400, f"{method} {url}: {response.text}"
                check_documented(document, operation, response)
    assert tried > 40


def _run_both(command: list[str], server: ServerProcess) -> tuple[str, str]:
    """Runs an example for a model that is there, and for one that is not; returns its output, and its error."""
    url = f"http://127.0.0.1:{server.http_port}"
    right, wrong = (
        subprocess.run([*command, url, model], cwd=ROOT, capture_output=True, text=True)
        for model in ("movielens", "movielen")
    )
    assert right.returncode == 0, right.stderr
    assert wrong.returncode == 1
    return right.stdout, wrong.stderr


def test_the_example_in_go_runs(server: ServerProcess) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    told, fault = _run_both(["go", "run", "examples/lookup.go"], server)
    assert told.startswith("version 1: 2 users of 32 numbers, genres [0 0 ")
    assert fault.startswith("404 NOT_FOUND: Servable not found for request: Latest(movielen) [movielens]")


def test_the_example_in_typescript_is_typed_and_runs(server: ServerProcess, tmp_path: Path) -> None:
    tools = ROOT / "console/node_modules/.bin"
    if not tools.is_dir():
        pytest.skip("make console-check has not installed the console's tools")
    source, program = "examples/lookup.ts", tmp_path / "lookup.mjs"
    flags = (
        "--noEmit --strict --target es2022 --module esnext --moduleResolution bundler --lib es2022,dom --types".split()
    )
    subprocess.run([tools / "tsc", *flags, "", source], cwd=ROOT, check=True)
    subprocess.run(
        [tools / "esbuild", source, "--format=esm", f"--outfile={program}", "--log-level=error"], cwd=ROOT, check=True
    )
    told, fault = _run_both(["node", str(program)], server)
    assert told.startswith("2 users of 32 numbers, genres 0,0,")
    assert fault.startswith("Error: 404 NOT_FOUND: Servable not found for request: Latest(movielen) movielens")


def test_the_load_test_counts_no_failure_on_either_wire(server: ServerProcess) -> None:
    summary = run(
        "-m",
        "locust",
        "--locustfile=loadtest/locustfile.py",
        "--headless",
        "--only-summary",
        "--exit-code-on-error=1",
        "--users=4",
        "--spawn-rate=4",
        "--run-time=3s",
        f"--host=http://127.0.0.1:{server.http_port}",
        f"--grpc_host=127.0.0.1:{server.grpc_port}",
    )
    for name in (":lookup", ":predict", "Predict lookup", "Predict serving_default"):
        assert re.search(rf"{name} +[1-9]\d* +0\(0\.00%\)", summary), summary
