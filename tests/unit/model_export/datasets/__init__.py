"""Tests of model_export.datasets."""
