"""Attacks a server with legal and illegal byte sequences, and measures how each slows another client, the victim."""
