"""Converts request and answer bytes to arrays and back: protobuf, JSON, Open Inference Protocol; pure functions."""
