"""Tests of model_export/demo."""
