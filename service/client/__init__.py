"""The Python client: numpy in, numpy out, over gRPC or HTTP; imports no transport, no engine and no TensorFlow.

Its two classes are here and are imported on first use, as docs/adr/0008 has it for model_export.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.client.async_client import AsyncEmbeddingClient
    from service.client.client import EmbeddingClient

_HOMES = {"AsyncEmbeddingClient": "async_client", "EmbeddingClient": "client"}

__all__ = ["AsyncEmbeddingClient", "EmbeddingClient"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
