"""Real processes and real sockets."""
