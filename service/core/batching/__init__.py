"""Requests that wait are run together: a Batcher stands in front of a backend, and can be left out."""
