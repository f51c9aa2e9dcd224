"""Runs one server process: reads the command line, opens the ports, and joins all parts of the server in app.py."""
