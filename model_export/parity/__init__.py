"""Computes the answers that an artifact's signatures should give, and compares the artifact's answers with them."""
