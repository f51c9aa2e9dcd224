"""Broken, hostile and random requests against a running server: `python -m loadtest.fuzz`."""
