"""Converts request bytes to arrays and arrays to answer bytes, for protobuf, JSON and the Open Inference Protocol."""
