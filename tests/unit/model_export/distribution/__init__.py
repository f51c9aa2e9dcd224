"""Tests of model_export/distribution."""
