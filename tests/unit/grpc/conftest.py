"""Fixtures of the gRPC tests: the engine and the model of the HTTP tests."""

from __future__ import annotations

from tests.unit.http.conftest import engine, registry, table

__all__ = ["engine", "registry", "table"]
