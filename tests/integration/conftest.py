"""Fixtures of the integration tests: a model folder that tests may change, and servers over it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.process import ServerProcess
from tests.toy_model import write_toy_model

Serve = Callable[..., ServerProcess]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Makes a model folder with version 1 of the toy model."""
    write_toy_model(tmp_path / "model" / "1")
    return tmp_path / "model"


@pytest.fixture
def serve(base: Path) -> Iterator[Serve]:
    """Returns a function that starts servers over the model folder, with lookups only by default; stops them later."""
    with ExitStack() as stack:

        def start(*flags: str, **settings: object) -> ServerProcess:
            given = {
                "model_base_path": base,
                "graph_signatures": "off",
                "file_system_poll_wait_seconds": 0.05,
            }
            return stack.enter_context(ServerProcess(*flags, **(given | settings)))

        yield start


def add_version(base: Path, version: int, **options: object) -> Path:
    """Adds a version as an exporter does: writes it to another folder, then renames that."""
    hidden = base.parent / f"incoming-{version}"
    write_toy_model(hidden, **options)  # type: ignore[arg-type]
    os.rename(hidden, base / str(version))
    return base / str(version)
