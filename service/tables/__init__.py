"""Reads rows in memory: mapped tables, the kernels and plans that read them, vocabularies; no TensorFlow."""
