"""Checks that no source file calls functions that run code from data, because strangers may have written the data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.source_files import faultless, imports, nodes, python_files

# Functions and modules that run code which is hidden in the data they read.
_RUNS_DATA = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml", "code"}
_CALLS = {"eval", "exec", "compile", "__import__"}


def test_nothing_that_is_read_can_run() -> None:
    faultless(
        fault for file in python_files("service", "model_export", "loadtest", "examples") for fault in _unsafe(file)
    )


def _unsafe(file: Path) -> Iterator[str]:
    for name in imports(nodes(file)):
        if name.split(".")[0] in _RUNS_DATA:
            yield f"{file} imports {name}"
    for node in nodes(file):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
                yield f"{file}:{node.lineno} calls {node.func.id}"
            allowed = [keyword.value for keyword in node.keywords if keyword.arg == "allow_pickle"]
            if not all(isinstance(v, ast.Constant) and v.value is False for v in allowed):
                yield f"{file}:{node.lineno} allows pickles"
            shells = [keyword.value for keyword in node.keywords if keyword.arg == "shell"]
            if any(isinstance(value, ast.Constant) and value.value for value in shells):
                yield f"{file}:{node.lineno} runs a shell"
