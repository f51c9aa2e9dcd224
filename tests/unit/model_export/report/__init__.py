"""Tests of model_export.report."""
