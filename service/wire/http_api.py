"""Holds the HTTP API's constants for the rest of the server, without importing Starlette or FastAPI."""

from __future__ import annotations

# The name of the HTTP API in metrics and logs.
API = "http"
# Default of the most rows of a table that one request to the HTTP route tables/{table}:rows may read.
DEFAULT_MAX_TABLE_ROWS = 65536
