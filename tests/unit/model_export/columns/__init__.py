"""Tests of model_export.columns."""
