"""Fetches versions of models from object stores into a local cache folder, from which the server maps them.

Only this folder imports obstore, an optional extra. The engine knows a store as one more VersionSource.
"""
