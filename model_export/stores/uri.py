"""Distinguishes the URI of an object store from a local folder in the flag `--out`, without importing obstore."""

from __future__ import annotations

from pathlib import Path

from service.engine.model_config import is_in_store


class StoreUri(str):
    """The URI below which an object store has the versions of one model, such as s3://bucket/models/film."""

    __slots__ = ()


def out_place(text: str) -> Path | StoreUri:
    return StoreUri(text.rstrip("/")) if is_in_store(text) else Path(text)
