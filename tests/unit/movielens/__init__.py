"""Tests of examples/movielens."""
