"""Tests of model_export.importers."""
