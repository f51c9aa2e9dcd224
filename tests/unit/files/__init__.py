"""Tests of service/files."""
