"""Tests of service.request_log."""
