"""Tests of model_export/answers."""
