"""What operators see: metrics, the status page, traces, the request log and the log; never delays a request."""
