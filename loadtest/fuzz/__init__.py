"""Sends broken, hostile and random requests to a running server: `python -m loadtest.fuzz`."""
