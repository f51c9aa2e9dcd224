"""Makes metrics, the status page, traces, the request logs and the process's log, without delaying requests."""
