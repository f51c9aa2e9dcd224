"""Tests of model_export.export."""
