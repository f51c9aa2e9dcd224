"""What the rest of the server knows of the HTTP API; it imports neither Starlette nor FastAPI."""

from __future__ import annotations

# Its name in metrics and logs.
API = "http"
# Most rows of a table that one request reads by their numbers.
DEFAULT_MAX_TABLE_ROWS = 65536
