"""Tests of service/dataplane."""
