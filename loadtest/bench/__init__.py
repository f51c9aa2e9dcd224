"""Benchmarks of our server, which runs as a separate process: `make bench`, whose --list names the cases."""
