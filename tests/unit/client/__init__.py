"""Tests of service/client."""
