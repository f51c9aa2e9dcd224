"""Tests of model_export.layers."""
