"""What no file of the project may do, for what it reads may come from strangers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.test_house_rules import imports, python_files, tree

# Reading any of these can run what was written into the data.
_RUNS_DATA = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml", "code"}
_CALLS = {"eval", "exec", "compile", "__import__"}


@pytest.mark.parametrize("file", python_files("service", "model_export", "loadtest", "examples"), ids=str)
def test_nothing_that_is_read_can_run(file: Path) -> None:
    assert not {name.split(".")[0] for name in imports(file)} & _RUNS_DATA
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in _CALLS), f"{file}:{node.lineno}"
            allowed = [keyword.value for keyword in node.keywords if keyword.arg == "allow_pickle"]
            assert all(isinstance(v, ast.Constant) and v.value is False for v in allowed), f"{file}:{node.lineno}"
            # subprocess with a shell.
            shells = [keyword.value for keyword in node.keywords if keyword.arg == "shell"]
            assert not any(isinstance(value, ast.Constant) and value.value for value in shells), f"{file}:{node.lineno}"
