"""Error that keeps a server from starting."""


class StartError(Exception):
    """The server can not start; the message says what to change."""
