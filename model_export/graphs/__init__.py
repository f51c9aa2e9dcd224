"""Builds the TensorFlow graphs of an artifact: lookups for both devices, vocabularies, {serve, tpu} MetaGraphs."""
