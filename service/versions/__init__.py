"""Models, their versions and leases: what is found, loaded, published, swapped and unloaded, and when."""
