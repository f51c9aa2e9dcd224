"""Tests of service/codecs."""
