"""Writes versions into object stores for servers to fetch. Only upload.py imports obstore."""
