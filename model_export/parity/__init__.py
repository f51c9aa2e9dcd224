"""Computes the expected answers of an artifact's signatures, and compares the artifact with them."""
