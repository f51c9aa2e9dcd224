"""A server under a steady mixed load for as long as wanted: what fails, and whether it grows."""
