"""What a server is told: flags, variables and files, and what is wrong with them."""
