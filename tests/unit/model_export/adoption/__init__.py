"""Tests of model_export.adoption."""
