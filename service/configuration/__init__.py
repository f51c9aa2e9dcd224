"""Reads the server's settings from flags, environment variables and files, and finds wrong values."""
