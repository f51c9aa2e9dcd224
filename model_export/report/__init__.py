"""Reports on an artifact: health of its tables, signatures, parity and training, as text, JSON or HTML."""
