"""Tests of service/transports."""
