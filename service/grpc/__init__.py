"""Serves gRPC in Python (the control server): grpcio calls handlers, which convert request bytes to answer bytes."""
