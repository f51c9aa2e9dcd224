"""Runs one server process: the command line, listeners, and app.py, which joins all folders."""
