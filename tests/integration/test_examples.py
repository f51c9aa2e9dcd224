"""Runs the examples that users copy, the demo's requests, the load test and the benchmark on an exported model."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.process import HAS_CORE, ROOT, ServerProcess, environment, unused_ports
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


def test_a_demo_whose_port_is_taken_says_so_and_asks_no_other_server(demo_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = ["examples/demo.py", f"--model_base_path={demo_model}", f"--port={taken.getsockname()[1]}"]
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith("end it, or `make demo PORT=` another.\n")


def test_every_request_of_the_demo_is_answered_and_its_server_ends_with_it(demo_model: Path) -> None:
    port, rest_api_port = unused_ports(2)
    command = ["examples/demo.py", f"--model_base_path={demo_model}", f"--port={port}"]
    with subprocess.Popen(
        [sys.executable, *command, f"--rest_api_port={rest_api_port}"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        try:
            assert demo.stdout is not None
            lines = iter(demo.stdout.readline, "")
            shown = "".join(itertools.takewhile(lambda line: "runs until Ctrl-C" not in line, lines))
            demo.terminate()
            # The output ends with the last process that holds it, which is the server.
            demo.communicate(timeout=60)
            assert demo.returncode == 0, shown
        finally:
            with suppress(ProcessLookupError):
                os.killpg(demo.pid, signal.SIGKILL)
    assert '{"embeddings":{"genres":[[' in shown
    assert re.search(r'\{"rows":\[\[-?\d', shown)
    if HAS_CORE:
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


def _call(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder. npm takes what it has fetched before, and tries once more to fetch the rest."""
    variables = environment(npm_config_prefer_offline="true", npm_config_fetch_retries="1")
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


def _done(command: Sequence[str | Path], folder: Path) -> None:
    done = _call(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr


def _run_both(command: Sequence[str | Path], target: str, folder: Path) -> tuple[str, str]:
    """Runs an example for a model that is there, and for one that is not; returns its output, and its error."""
    right, wrong = (_call([*command, target, model], folder) for model in ("movielens", "movielen"))
    assert right.returncode == 0, right.stderr
    assert wrong.returncode == 1
    return right.stdout, wrong.stderr


@pytest.fixture(scope="module")
def genres(server: ServerProcess) -> list[list[float]]:
    """Looks up the genres that the examples look up."""
    body = {"features": {"genres": [["Comedy", "Drama"], []]}}
    found: list[list[float]] = server.http.post("/v1/models/movielens:lookup", json=body).json()["embeddings"]["genres"]
    assert any(found[0]) and not any(found[1])
    return found


def test_the_example_in_go_is_generated_and_runs(
    server: ServerProcess, genres: list[list[float]], tmp_path: Path
) -> None:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    folder = tmp_path / "examples/go"
    shutil.copytree(ROOT / "examples/go", folder, ignore=shutil.ignore_patterns("serving"))
    (tmp_path / "service").symlink_to(ROOT / "service")
    fetched = _call(["go", "mod", "download"], folder)
    if fetched.returncode:
        assert "go.sum" not in fetched.stderr, fetched.stderr
        pytest.skip(f"the Go modules of the example can not be fetched: {fetched.stderr}")
    _done(["go", "generate"], folder)
    _done(["go", "build", "-o", "lookup", "."], folder)
    told, fault = _run_both([folder / "lookup"], f"127.0.0.1:{server.grpc_port}", folder)
    about, numbers = told.split("[", 1)
    assert about == "version 1: 2 users of 32 numbers, genres "
    assert [float(one) for one in re.findall(r"[^][\s]+", numbers)] == pytest.approx(genres[0] + genres[1], rel=1e-6)
    assert fault == "NotFound: Servable not found for request: Latest(movielen); models: movielens\n"


# What the compiler must refuse, each line for the reason above it; where it does not, it refuses the comment.
_WRONG = """
import { post, ServerError } from "./lookup.mjs";

const lookup = "/v1/models/{model}:lookup", where = { model: "m" }, table = { model: "m", table: "t" };
// @ts-expect-error no such path
post("", "/v1/models/{model}:look", where, { features: {} });
// @ts-expect-error no such parameter of the path
post("", lookup, { name: "m" }, { features: {} });
// @ts-expect-error a body without features
post("", lookup, where, {});
// @ts-expect-error no such field of the body
post("", lookup, where, { features: {}, weight: {} });
// @ts-expect-error an id of neither numbers nor letters
post("", lookup, where, { features: { user_id: [true] } });
// @ts-expect-error one list for all rows
post("", lookup, where, { features: {}, weights: { genres: [1, 2] } });
// @ts-expect-error no such field of the answer
post("", lookup, where, { features: {} }).then((answer) => answer.embedding);
// @ts-expect-error a row's id is a number
post("", "/v1/models/{model}/tables/{table}:rows", table, { ids: ["1"] });
// @ts-expect-error neither ids, keys, vectors nor labels
post("", "/v1/models/{model}/tables/{table}:neighbors", table, { k: 3 });
// @ts-expect-error no such metric
post("", "/v1/models/{model}/tables/{table}:neighbors", table, { ids: [1], metric: "cos" });
// @ts-expect-error no such code
export const isKnown = (error: ServerError) => error.code !== "NOTFOUND";
"""


def test_the_example_in_typescript_is_typed_by_the_openapi_document_and_runs(
    server: ServerProcess, genres: list[list[float]], tmp_path: Path
) -> None:
    if shutil.which("npx") is None:
        pytest.skip("Node with npx is not installed")
    source = (ROOT / "examples/lookup.ts").read_text()
    (tmp_path / "lookup.mts").write_text(source)
    (tmp_path / "wrong.mts").write_text(_WRONG)
    tools, node = (documented.split() for documented in re.findall(r"npx -y (?:-p \S+ )+", source))
    url = f"http://127.0.0.1:{server.http_port}"
    generated = _call([*tools, "openapi-typescript", f"{url}/openapi.json", "-o", "openapi.d.ts"], tmp_path)
    if re.search("failed, reason:|network timeout", generated.stderr):
        pytest.skip(f"the packages of the example can not be fetched: {generated.stderr}")
    assert generated.returncode == 0, generated.stderr
    flags = "--strict --noEmit --target es2022 --module esnext --moduleResolution bundler --erasableSyntaxOnly".split()
    _done([*tools, "tsc", *flags, "lookup.mts", "wrong.mts"], tmp_path)
    # The example itself, in the Node of its first lines, which runs TypeScript.
    told, fault = _run_both([*node, "node", "--no-warnings", "lookup.mts"], url, tmp_path)
    about, near = told.splitlines()
    begin, numbers = about.split("[", 1)
    assert begin == "2 users of 32 numbers, genres "
    assert json.loads(f"[{numbers}") == genres
    query = {"ids": [50], "k": 3, "labels": True}
    answer = server.http.post("/v1/models/movielens/tables/film:neighbors", json=query).json()
    assert near == f"nearest to film 50: {', '.join(answer['labels'][0])}"
    assert fault == "Servable not found for request: Latest(movielen); there are: movielens\n"


def test_the_load_test_counts_no_failure_on_either_wire(server: ServerProcess) -> None:
    names = (":lookup", ":predict", "Predict lookup", "Predict serving_default")
    # On a busy machine a user may not have begun after 3 s.
    for run_time in ("3s", "60s"):
        summary = run(
            "-m",
            "locust",
            "--locustfile=loadtest/locustfile.py",
            "--headless",
            "--only-summary",
            "--exit-code-on-error=1",
            "--users=4",
            "--spawn-rate=4",
            f"--run-time={run_time}",
            f"--host=http://127.0.0.1:{server.http_port}",
            f"--grpc_host=127.0.0.1:{server.grpc_port}",
        )
        if are_counted := all(re.search(rf"{name} +[1-9]\d* +0\(0\.00%\)", summary) for name in names):
            break
    assert are_counted, summary
