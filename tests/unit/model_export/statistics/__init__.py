"""Tests of model_export.statistics."""
