"""Reads rows of mapped tables: kernels, plans of lookups, vocabularies. Imports no TensorFlow."""
