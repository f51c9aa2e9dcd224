"""Reads rows of remote tables, which lie in a Valkey or Redis cluster, before a deadline."""
