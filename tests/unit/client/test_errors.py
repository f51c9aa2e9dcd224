"""Errors have types, and a missing library is named."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable

import grpc
import pytest

from embedding_client import errors
from embedding_client.async_client import AsyncEmbeddingClient
from embedding_client.client import EmbeddingClient

CODES = [code.name for code in grpc.StatusCode if code.name != "OK"]


@pytest.mark.parametrize("code", CODES)
def test_every_code_stands_in_the_docstring_beside_its_class(code: str) -> None:
    error = errors.error_of(code, "text", 2.0)
    (line,) = [line for line in (errors.__doc__ or "").splitlines() if code in line.split()]
    assert type(error).__name__ == line.split()[0]
    assert (error.code, error.message, error.retry_after_s, error.attempts) == (code, "text", 2.0, 0)


def test_an_error_survives_another_process() -> None:
    error = pickle.loads(pickle.dumps(errors.error_of("UNAVAILABLE", "text", 1.5)))
    assert (type(error), error.code, error.message, error.retry_after_s) == (
        errors.Unavailable,
        "UNAVAILABLE",
        "text",
        1.5,
    )


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Returns a function that makes a library fail to import, so that the module that needs it is imported anew."""

    def make(library: str, module: str) -> None:
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, f"embedding_client.{module}", raising=False)

    return make


def test_without_grpcio_it_says_what_to_install(without: Callable[[str, str], None]) -> None:
    without("grpc", "grpc_transport")
    with pytest.raises(ImportError, match="pip install grpcio"):
        EmbeddingClient("localhost:8500", model="m")
    with EmbeddingClient("http://localhost:8501", model="m"):
        pass


def test_without_httpx_it_says_what_to_install(without: Callable[[str, str], None]) -> None:
    without("httpx", "http_async")
    client = AsyncEmbeddingClient("http://localhost:8501", model="m")
    with pytest.raises(ImportError, match="pip install httpx"):
        asyncio.run(client.status())
    with EmbeddingClient("http://localhost:8501", model="m"):
        pass
