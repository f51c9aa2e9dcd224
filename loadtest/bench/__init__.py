"""Closed-loop measurements: `python -m loadtest.bench` for all of them, the other modules for one question each.

Servers here are processes of their own, and what is known of ours is its wire; only `baselines` takes a transport of
the service, to show what it costs with nothing behind it, and `huge_pages` its kernels.
"""
