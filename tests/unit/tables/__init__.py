"""Tests of service/tables."""
