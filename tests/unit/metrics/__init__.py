"""Tests of service/metrics."""
