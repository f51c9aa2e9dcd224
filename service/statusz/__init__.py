"""What /v1/statusz shows: gathered when it is asked for, so that nothing else pays for it."""
