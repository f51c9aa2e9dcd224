"""Serves embedding lookups and predictions; app.py joins the layers (docs/architecture.md)."""
