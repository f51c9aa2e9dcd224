"""Tests of service/observe."""
