"""Tests. toy_model.py writes the model that most tests serve; oracle.py computes the expected answers."""
