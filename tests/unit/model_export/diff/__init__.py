"""Tests of model_export.diff."""
