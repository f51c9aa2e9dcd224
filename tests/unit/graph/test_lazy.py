"""A lazy backend opens once, at the first run, and again only where opening failed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.errors import ArtifactError, BackendFailure
from service.graph.lazy import LazyBackend
from tests.unit.engine.fakes import FakeBackend, X


def test_opens_at_the_first_run_and_never_again() -> None:
    opened: list[FakeBackend] = []

    def open_backend() -> FakeBackend:
        opened.append(FakeBackend())
        return opened[-1]

    lazy = LazyBackend(open_backend)
    assert opened == []
    for _ in range(2):
        assert lazy.run("s", {"x": X}, ("y",))["y"].tolist() == [2, 4]
    assert len(opened) == 1
    lazy.close()
    assert opened[0].closed == 1


def test_many_first_runs_open_one() -> None:
    opened: list[FakeBackend] = []
    together = threading.Barrier(4)

    def open_backend() -> FakeBackend:
        opened.append(FakeBackend())
        return opened[-1]

    lazy = LazyBackend(open_backend)

    def run() -> None:
        together.wait(30)
        lazy.run("s", {"x": X}, ("y",))

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run) for _ in range(4)]:
            future.result(30)
    assert len(opened) == 1
    assert len(opened[0].runs) == 4


def test_what_could_not_be_opened_is_tried_again() -> None:
    attempts: list[int] = []

    def open_backend() -> FakeBackend:
        attempts.append(1)
        if len(attempts) == 1:
            raise ArtifactError("not yet")
        return FakeBackend()

    lazy = LazyBackend(open_backend)
    with pytest.raises(BackendFailure, match="can not be loaded") as caught:
        lazy.run("s", {"x": X}, ("y",))
    assert "not yet" not in caught.value.message
    assert isinstance(caught.value.__cause__, ArtifactError)
    assert lazy.run("s", {"x": X}, ("z",))["z"].tolist() == [3, 6]


def test_closing_what_was_never_opened_opens_nothing() -> None:
    def open_backend() -> FakeBackend:
        raise AssertionError("opened")

    LazyBackend(open_backend).close()
