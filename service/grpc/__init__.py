"""Serves gRPC in Python (the reference server): grpcio calls handlers, which convert request bytes to answer bytes."""
