"""Writes artifacts of trained models: signatures and manifest, verified by comparison with the numpy oracle."""
