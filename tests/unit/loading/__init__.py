"""Tests of service.loading."""
