"""Attacks a server with legal and illegal byte sequences, and measures how each attack slows a client of the server."""
