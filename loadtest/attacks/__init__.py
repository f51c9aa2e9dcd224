"""Attacks a server with legal and illegal byte sequences, with a victim beside each, and says what both met."""
