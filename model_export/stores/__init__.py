"""Writes versions into object stores for servers to fetch. Only upload.py and staging.py import obstore."""
