"""Stock clients work on a server process: on the toy model, and on a model of TensorFlow Serving's tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.process import ROOT, environment

pytestmark = pytest.mark.core


def run(base: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs loadtest.stock_clients against a server of a model."""
    command = [sys.executable, "-m", "loadtest.stock_clients", f"--model_base_path={base}", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Returns ok, skipped or FAILED by client and call; their columns have fixed widths."""
    return {" ".join(line[:85].split()): line[86:].split()[0] for line in done.stdout.splitlines()[:-1]}


def test_clients_without_tensorflow_work_on_lookups(base: Path) -> None:
    # The third signature of the toy model needs a graph, which its file does not have, so it is left out.
    given = ("--signatures=lookup,lookup_tpu_tensor_core", "--clients=reflection,health")
    done = run(base, "--model_name=toy", *given, "--", "--graph_signatures=off")
    assert done.returncode == 0, done.stdout + done.stderr
    found = verdicts(done)
    assert found["reflection list"] == "ok"
    assert found["reflection dynamic call of Predict"] == "ok"
    assert found["grpc_health Check toy"] == "ok"


@pytest.mark.tf
def test_the_stubs_of_tensorflow_serving_work_on_its_own_model(tf_serving_testdata: Path) -> None:
    base = tf_serving_testdata / "saved_model_half_plus_two_cpu"
    given = ("--model_name=half_plus_two", '--example={"x": 2.0}', "--clients=serving_api")
    done = run(base, *given)
    assert done.returncode == 0, done.stdout + done.stderr
    found = verdicts(done)
    for call in ("Predict serving_default", "Classify classify_x_to_y", "Regress regress_x_to_y", "MultiInference"):
        assert found[f"tensorflow-serving-api {call}"] == "ok"


def test_a_call_that_fails_fails_the_run(base: Path) -> None:
    given = ("--signatures=serving_default", "--clients=health,reflection")
    done = run(base, "--model_name=toy", *given, "--", "--graph_signatures=off")
    assert done.returncode == 1
    assert verdicts(done)["reflection dynamic call of Predict"] == "FAILED"
