"""Breaks replicas behind load balancers under load, and counts the failed requests of usual clients."""
