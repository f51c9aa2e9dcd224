"""The command line has help that is enough to start, one-line errors, and no TensorFlow before it is needed."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from model_export.__main__ import main
from model_export.cli import build_parser


def test_help_names_every_command_and_a_first_line_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert "model-export demo --dataset synthetic" in text
    assert all(command in text for command in ("fetch", "train", "export", "verify", "inspect"))
    listed = re.findall(r"^    (\w+) ", text, re.MULTILINE)
    assert listed[:4] == ["export", "import", "adopt", "inspect"]
    assert re.findall(r"^  model-export (\w+)", text, re.MULTILINE)[:4] == ["export", "import", "adopt", "inspect"]


def test_commands_without_a_graph_do_not_import_tensorflow() -> None:
    code = "import sys, model_export.commands; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_user_error_is_one_message_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    assert "it is not a SavedModel" in capsys.readouterr().err
    (tmp_path / "7").mkdir()
    assert main(["export", "--out", str(tmp_path), "--version", "7"]) == 1
    assert "never overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", ["8,1", "a", "0,1", "1,1", ""])
def test_bad_batch_sizes_are_refused(sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["export", "--batch_sizes", sizes])
    assert repr(sizes) in capsys.readouterr().err


@pytest.mark.parametrize(
    "module",
    [
        "model_export.spec.features",
        "model_export.parity.oracle",
        "model_export.graphs.source",
    ],
)
def test_the_examples_in_docstrings_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted and not result.failed
