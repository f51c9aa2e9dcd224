"""Tests of service/control."""
