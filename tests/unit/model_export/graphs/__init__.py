"""Tests of model_export/graphs."""
