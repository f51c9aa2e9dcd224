"""The client raises errors that name the library of a wire if it is not installed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from embedding_client import AsyncEmbeddingClient, EmbeddingClient


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
