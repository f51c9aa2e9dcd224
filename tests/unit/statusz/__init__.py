"""Tests of service.statusz."""
