"""Tests of model_export.training."""
