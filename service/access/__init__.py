"""Decides the rights of clients ("callers") on each model, by their tokens or client certificates.

Also reads the TLS certificates of the server's ports.
"""
