"""Tests of the comparison of versions."""
