"""Declares the error that stops the server's start."""


class StartError(Exception):
    """The server can not start; the message says what to change."""
