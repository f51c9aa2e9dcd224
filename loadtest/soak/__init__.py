"""Keeps a server under a steady mixed load for a long time, and reports failures and the growth of its memory."""
