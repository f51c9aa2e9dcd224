"""Builds the TensorFlow graphs of an artifact: lookups for both devices, vocabularies, and {serve, tpu} MetaGraphs."""
