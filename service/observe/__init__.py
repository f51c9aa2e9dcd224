"""Collects metrics, the status page, traces, the request log and the log. Nothing here delays a request."""
