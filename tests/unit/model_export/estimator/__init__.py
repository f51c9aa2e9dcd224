"""Tests of model_export.estimator."""
