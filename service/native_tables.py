"""Gives the native core's kernels, indexes and guard of mapped files; None if the core is not built."""

from __future__ import annotations

from typing import Any

NATIVE_TABLES: Any
try:
    from service import _native
except ImportError:
    NATIVE_TABLES = None
else:
    NATIVE_TABLES = _native.tables
