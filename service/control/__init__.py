"""Control requests without a wire format: status, labels, rows, searches, upserts and reloads."""
