"""The Python side of the native core: describes servables to it, publishes routes, starts it, reads its counts.

Only forwarded.py, which reads the headers of forwarded requests, runs once per request.
"""
