"""Lookups from request bytes to response bytes in two compiled calls; whatever is unusual takes the general path."""
