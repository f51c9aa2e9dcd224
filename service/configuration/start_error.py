"""Declares the error that stops the server's start."""


class StartError(Exception):
    """The error that stops the server's start; the message says what the user shall change."""
