"""Python's interface to the native core: starts it, describes servables to it, publishes routes, reads its counts.

Only forwarded.py, which reads the headers of forwarded requests, runs once per request.
"""
