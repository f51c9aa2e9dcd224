"""Tests of model_export, in the shape of its tree; those that import TensorFlow carry the marker tf."""
