"""Serves lookups and predicts in Python that is written to be read: what a machine without Rust runs, and an oracle."""
