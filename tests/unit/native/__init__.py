"""Tests of native/."""
