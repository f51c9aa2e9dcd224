"""Compares two versions of a model: rows, and the geometry of tables. Reads folders of versions, knows no wire."""
