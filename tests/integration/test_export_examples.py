"""Every example of the exporter runs as its docstring says, and a server serves the model that it writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.process import ROOT, ServerProcess, environment, server_of
from tests.toy_model import manifest_of

pytestmark = pytest.mark.tf

EXAMPLES = sorted(path.name for path in (ROOT / "examples/export").glob("*.py"))
# Name of an example -> its additional flags, and a request of one row for each feature of its lookups.
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "feature_columns.py": ([], {"city": [["Lima"]], "tag": [[3, 4]], "clicks": [[5, 6, 7]]}),
    "foreign_savedmodel.py": ([], {"film_id": [7], "seen": [[1, 2]]}),
    "keras_model.py": ([], {"user": ["ann"], "film": [3]}),
    "layer_functional.py": ([], {"user": [3], "seen": [[4, 5]], "clicks": [[6]]}),
    "layer_subclass.py": ([], {"genres": [["drama", "never heard of"]]}),
    "movielens_estimator.py": (
        ["--dataset=synthetic", "--epochs=1"],
        {
            "user_id": [[1]],
            "film_id": [[2]],
            "recent_films": [[3, 4]],
            "genres": [["comedy"]],
            "occupation": [["writer"]],
        },
    ),
    "separate_optimizers.py": ([], {"user_id": [3], "film_id": [4]}),
    "shared_columns.py": ([], {"watched": [[1, 2]], "liked": [[2]]}),
}


def test_every_example_has_a_case() -> None:
    assert sorted(CASES) == EXAMPLES


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs all examples in turn in one process, so that TensorFlow starts once; returns the folder that each wrote."""
    bases = {name: tmp_path_factory.mktemp("examples") / "model" for name in CASES}
    runs = [[name, f"--out={bases[name]}", *flags] for name, (flags, _) in CASES.items()]
    script = (
        "import runpy, sys\n"
        # No test looks at measured speeds: each timing of an exported signature takes 2 ms in place of 60.
        "import service.process.trial\n"
        "service.process.trial._TURN_S = 0.002\n"
        f"for argv in {runs!r}:\n"
        "    sys.argv = argv\n"
        "    runpy.run_path(f'examples/export/{argv[0]}', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line.rpartition(" ")[2] for line in done.stdout.splitlines() if "and verified: " in line]
    assert said == [f"{base}/1" for base in bases.values()]
    assert [line for line in done.stderr.splitlines() if "no TPU is attached" not in line] == []
    return bases


@pytest.fixture(scope="module")
def server(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server of the lookups of all examples, each of which is a model with the example's name."""
    with server_of(bases, tmp_path_factory.mktemp("examples-server"), graph_signatures="off") as server:
        yield server


@pytest.mark.parametrize("name", CASES)
def test_an_examples_model_is_served(name: str, bases: dict[str, Path], server: ServerProcess) -> None:
    features = CASES[name][1]
    manifest = manifest_of(bases[name] / "1")
    assert set(manifest.signatures["lookup"].features) == set(features)
    embeddings = server.lookup(features, model=name)
    assert {feature: len(rows) for feature, rows in embeddings.items()} == dict.fromkeys(features, 1)
