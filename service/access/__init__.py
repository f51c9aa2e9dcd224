"""Decides the rights of callers by tokens, client certificates and grants per model. Holds the ports' certificates."""
