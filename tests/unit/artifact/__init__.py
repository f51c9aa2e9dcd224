"""Tests of service/artifact."""
