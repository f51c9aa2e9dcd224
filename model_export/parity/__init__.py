"""What every signature should answer, and the checks of an artifact against it."""
