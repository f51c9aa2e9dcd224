"""Bytes to arrays and back: protobuf, JSON and the Open Inference Protocol; pure functions."""
