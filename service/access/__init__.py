"""Decides the rights of callers: tokens, client certificates, grants per model. Holds the certificates of our ports."""
