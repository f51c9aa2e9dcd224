"""From a version folder to a servable: lookups and graphs opened, joined, batched, verified and warmed up."""
