"""Imports the native core's functions of tables, key indexes and maps; NATIVE_TABLES is None without the core."""

from __future__ import annotations

from typing import Any

NATIVE_TABLES: Any
try:
    from service import _native
except ImportError:
    NATIVE_TABLES = None
else:
    NATIVE_TABLES = _native.tables


def core_tables() -> Any:
    from service import _native

    return _native.tables
