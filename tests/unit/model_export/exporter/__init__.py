"""Tests of model_export.exporter."""
