"""Writes verified artifacts from trained models: signatures, manifest, comparison with the numpy oracle."""
