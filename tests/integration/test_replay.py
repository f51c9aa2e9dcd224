"""Records the answers of the native data plane, and compares the answers of the same server with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtest.replay.__main__ import main
from loadtest.replay.corpus import Corpus
from loadtest.replay.requests import FORMS, OTHER
from tests.integration.process import ROOT

pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records some 300 random requests and all hand-written ones; returns the corpus."""
    pytest.importorskip("service._native", reason="the native core is not built")
    folder = tmp_path_factory.mktemp("replay") / "corpus"
    models = "toy,policies,described,half"
    assert main(["record", f"--server-from={ROOT}", f"--out={folder}", "--requests=300", f"--models={models}"]) == 0
    return folder


def test_the_same_server_gives_the_recorded_answers(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["replay", f"--corpus={corpus}"])
    said = capsys.readouterr().out
    assert status == 0, said
    counts = dict(re.findall(r"^(\w+): (\d+) requests, ", said, re.MULTILINE))
    assert counts.keys() == {*FORMS, OTHER}
    assert sum(map(int, counts.values())) > 1500


def test_a_difference_fails_the_replay_and_is_shown(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = list(Corpus(corpus).read("rows"))
    number = next(i for i, (_, answers) in enumerate(entries) if answers[0]["status"] == 200)
    entries[number][1][0]["status"] = 201
    with Corpus(corpus).writer("rows") as file:
        for request, answers in entries:
            file.write(request, answers)
    # The server of this replay has the data plane that was recorded, so nothing else differs.
    assert main(["replay", f"--corpus={corpus}", "--forms=lookup,rows,rest_classify,grpc_infer"]) == 1
    said = capsys.readouterr().out
    assert "DIFFERENT 1 times, {'rows': 1}; rows, " in said
    assert "  status: was '201', now '200'\n" in said
    assert said.endswith("\n1 answers differ\n")


def test_random_requests_are_answered_and_refused(corpus: Path) -> None:
    for form in FORMS:
        statuses = [
            str(answers[0].get("status", dict(answers[0].get("headers", ())).get("grpc-status")))
            for request, answers in Corpus(corpus).read(form)
            if request.name.startswith("random")
        ]
        assert statuses.count("0") + statuses.count("200") + statuses.count("201") >= 3, (form, statuses)
        assert statuses.count("3") + statuses.count("400") >= 3, (form, statuses)
