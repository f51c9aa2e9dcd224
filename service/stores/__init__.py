"""Brings versions of models from object stores to a local cache folder, from which they are mapped as ever.

Only this folder imports obstore, an optional extra. The engine knows a store as one more VersionSource.
"""
