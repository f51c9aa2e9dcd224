"""Tests of service/deltas."""
