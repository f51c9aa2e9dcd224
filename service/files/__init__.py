"""An artifact's files while they are in use: maps that survive what is done to them, and checksums. Linux on x86-64."""
