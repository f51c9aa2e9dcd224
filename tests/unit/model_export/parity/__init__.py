"""Tests of model_export/parity."""
