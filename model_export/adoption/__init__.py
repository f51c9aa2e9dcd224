"""Finds the embedding lookups in a SavedModel that another program wrote, and describes them in a manifest."""
