"""Reports on an artifact: its tables' health, signatures, parity and training, as text, JSON or HTML."""
