"""The Python side of the native core: describes servables to it, publishes routes, starts it, reads its counts.

Nothing here runs once per request, but for the headers of requests that the core forwards.
"""
