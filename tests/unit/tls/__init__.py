"""Tests of service/tls."""
