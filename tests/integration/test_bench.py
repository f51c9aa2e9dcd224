"""The benchmark runs with tiny tables; tests check its answers and the rows of its table, and never its speed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench.__main__ import main
from loadtest.bench.cases import RATIOS, cases
from loadtest.bench.report import BEGIN, END, write_into
from loadtest.bench.workloads import GRPC, JSON, TINY, WORKLOADS, Data, check, grpc_answer, json_answer

pytestmark = [pytest.mark.tf, pytest.mark.core]

CASES = [
    "gRPC/W1",
    "gRPC/W3",
    "gRPC/W4",
    "gRPC/W5",
    "gRPC, grpcio constant/W1",
    "JSON/W2",
    "binary/W3",
    "gRPC, gzip in/W1",
    "gRPC, TLS/W2",
    "JSON, token/W1",
    "gRPC, TensorFlow signature/W5",
]


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
def test_a_run_has_a_row_for_each_case(bench_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The run finds the models that it needs, and exports none.
    shutil.copytree(bench_models, tmp_path / "tiny" / "models")
    out = tmp_path / "results.json"
    arguments = ["--tiny", "--rounds=2", "--seconds=0.03", "--connections=4", f"--folder={tmp_path}", f"--out={out}"]
    assert main([*arguments, *(f"--only={name}" for name in CASES)]) == 0
    text = capsys.readouterr().out
    for name in CASES:
        assert re.search(rf"^\| {re.escape(name)} \|", text, re.MULTILINE), name
    for row in {name.rsplit("/", 1)[0] for name in CASES}:
        assert re.search(rf"^\| {re.escape(row)} \|", text, re.MULTILINE), row
    found = json.loads(out.read_text())
    assert set(found["cases"]) == set(CASES)
    assert all(len(case["rounds"]) == 2 for case in found["cases"].values())
    assert all(shot["requests"] > 0 for case in found["cases"].values() for shot in case["rounds"])
    measured = {(r["of"], r["over"]) for r in found["ratios"] if r["measured"] is not None}
    assert ("gRPC/W1", "gRPC, grpcio constant/W1") in measured
    assert ("gRPC/W5", "gRPC, TensorFlow signature/W5") in measured
    assert found["commit"] and found["machine"]["cores"]


def test_every_ratio_is_of_cases_that_there_are() -> None:
    names = {case.name for case in cases()}
    assert {name for ratio in RATIOS for name in (ratio.of, ratio.over)} <= names


def test_a_wrong_answer_is_refused() -> None:
    data = Data(TINY)
    inputs = data.requests("W2")[0]
    wanted = data.expected("W2", inputs)
    check(wanted, wanted, exact=True)
    for wrong in (
        {**wanted, "user": wanted["user"][::-1]},
        {name: array for name, array in wanted.items() if name != "tags"},
        {**wanted, "item": wanted["item"][:-1]},
        {**wanted, "tags": wanted["tags"] + np.float32(1e-4)},
    ):
        with pytest.raises(AssertionError):
            check(wrong, wanted, exact=True)


def test_expected_vectors_are_rows_and_means_of_rows() -> None:
    data = Data(TINY)
    for workload in WORKLOADS[:4]:
        inputs = data.requests(workload)[0]
        wanted = data.expected(workload, inputs)
        np.testing.assert_array_equal(wanted["item"][-1], data.tables["item"][inputs["item"][-1]])
        if workload != "W4":
            begin, end = inputs["tags__row_splits"][-2:]
            tags = data.tables["tag"][inputs["tags__values"][begin:end]]
            np.testing.assert_allclose(wanted["tags"][-1], tags.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_constants_read_as_the_answers_that_they_stand_for() -> None:
    data = Data(TINY)
    wanted = data.expected("W2", data.requests("W2")[0])
    check(GRPC.decode(grpc_answer(wanted), {}), wanted, exact=True)
    check(JSON.decode(json_answer(wanted), {}), wanted, exact=True)


def test_measurements_are_written_between_the_markers(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_into(file, "new")
    assert file.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    file.write_text("no markers")
    with pytest.raises(ValueError, match="no markers"):
        write_into(file, "new")
