"""Integration tests, with real server processes and real sockets."""
