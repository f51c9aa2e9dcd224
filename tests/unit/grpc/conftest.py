"""The engine and the model of the HTTP tests, for the gRPC tests."""

from __future__ import annotations

from tests.unit.http.conftest import engine, model, registry

__all__ = ["engine", "model", "registry"]
