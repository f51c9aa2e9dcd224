"""Swaps versions of gigabytes under a steady load, and measures the effect on response times and memory."""
