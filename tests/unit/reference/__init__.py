"""Tests of service/reference."""
