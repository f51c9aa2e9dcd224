"""Tests of model_export/compaction."""
