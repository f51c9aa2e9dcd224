"""Calls a running server with unmodified clients of other projects: `python -m loadtest.stock_clients`."""
