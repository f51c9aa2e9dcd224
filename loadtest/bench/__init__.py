"""Benchmarks of our server, which runs as a separate process: `make bench`, whose --list names the cases.

`python -m loadtest.bench.start` measures starts with 10 GB of tables alone, which is the case start/10GB.
"""
