"""Tests of the Python client, with the server's own encoders and decoders as the oracle."""
