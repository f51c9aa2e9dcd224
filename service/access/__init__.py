"""Who may do what: tokens, client certificates, grants per model; and the certificates of our ports."""
