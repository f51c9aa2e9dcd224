"""Compares the tables of two versions of a model, row by row and by the distances between rows.

Reads version folders, and knows nothing of HTTP and gRPC.
"""
