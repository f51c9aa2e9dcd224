"""Records a server's answers to many requests, and compares those of another server: `python -m loadtest.replay`."""
