"""Wire formats to numpy arrays and back; pure functions."""
