"""Tests of service/process."""
