"""Closed-loop benchmarks: `python -m loadtest.bench` runs the main one; each other module measures something else.

Servers are separate processes, and the benchmarks use only our server's wire. Exceptions: `baselines` imports a
transport of the service, to measure it without an engine, and `huge_pages` imports the kernels.
"""
