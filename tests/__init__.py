"""Tests; toy_model.py says what they serve, oracle.py what the answers must be."""
