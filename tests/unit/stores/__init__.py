"""Tests of service.stores."""
