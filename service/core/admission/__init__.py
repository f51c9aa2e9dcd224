"""What the server takes on at once, and who waits: bounded, and fair between models. Nothing of wires is known here."""
