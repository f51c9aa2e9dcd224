"""Tables of an artifact in a Valkey or Redis cluster: what writes them there."""
