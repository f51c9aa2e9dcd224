"""Serves embedding lookups and predictions of models; process/app.py joins all folders (docs/architecture.md)."""
