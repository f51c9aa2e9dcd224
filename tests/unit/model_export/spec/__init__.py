"""Tests of model_export.spec."""
