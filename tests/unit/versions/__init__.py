"""Tests of service/versions."""
