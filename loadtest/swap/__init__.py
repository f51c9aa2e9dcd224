"""Swaps versions of gigabytes under a steady load, and measures the effect on requests and memory."""
