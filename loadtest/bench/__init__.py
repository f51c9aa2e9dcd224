"""Benchmarks of our server: `python -m loadtest.bench` runs the main one; modules such as `start` are programs too.

Servers are separate processes, and the benchmarks use only our server's wire. Exceptions: `baselines` imports a
transport of the service, to measure it without an engine, and `huge_pages` imports the reader of rows.
"""
