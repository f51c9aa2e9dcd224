"""Tables that lie in a Valkey or Redis cluster: where each row lies there, and how rows are read by a deadline."""
