"""Tests. toy_model.py writes the model that most of them serve; oracle.py computes the expected answers."""
