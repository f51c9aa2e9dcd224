"""A lazy backend opens once, when it is needed first, and again only where opening failed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.errors import ArtifactError
from service.graph.lazy import LazyBackend
from tests.unit.versions.fakes import FakeBackend


def test_opens_when_it_is_needed_and_never_again() -> None:
    opened: list[FakeBackend] = []

    def open_backend() -> FakeBackend:
        opened.append(FakeBackend())
        return opened[-1]

    lazy = LazyBackend(open_backend)
    assert opened == []
    for _ in range(2):
        assert lazy.opened() is opened[0]
    assert len(opened) == 1
    lazy.close()
    assert opened[0].closed == 1


def test_threads_that_need_it_at_once_open_one() -> None:
    opened: list[FakeBackend] = []
    together = threading.Barrier(4)

    def open_backend() -> FakeBackend:
        opened.append(FakeBackend())
        return opened[-1]

    lazy = LazyBackend(open_backend)

    def run() -> None:
        together.wait(30)
        assert lazy.opened() is opened[0]

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run) for _ in range(4)]:
            future.result(30)
    assert len(opened) == 1


def test_what_could_not_be_opened_is_tried_again() -> None:
    attempts: list[int] = []

    def open_backend() -> FakeBackend:
        attempts.append(1)
        if len(attempts) == 1:
            raise ArtifactError("not yet")
        return FakeBackend()

    lazy = LazyBackend(open_backend)
    with pytest.raises(ArtifactError, match="not yet"):
        lazy.opened()
    assert lazy.opened() is lazy.opened()
    assert len(attempts) == 2


def test_closing_what_was_never_opened_opens_nothing() -> None:
    def open_backend() -> FakeBackend:
        raise AssertionError("opened")

    LazyBackend(open_backend).close()
