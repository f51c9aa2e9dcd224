"""Tests of service/remote."""
