"""Finds out how a SavedModel that another program wrote looks up its tables; changes no file."""
