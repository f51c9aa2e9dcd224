"""gRPC: handlers over bytes (methods.py) and the server that carries them (grpcio_server.py)."""
