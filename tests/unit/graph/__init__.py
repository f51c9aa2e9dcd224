"""Tests of service/graph."""
