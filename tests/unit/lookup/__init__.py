"""Tests of service/lookup."""
