"""Serves gRPC as the reference server: handlers over bytes (methods.py), and grpcio (grpcio_server.py)."""
