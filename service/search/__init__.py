"""Searches for nearest rows: their indexes, threads and limits."""
