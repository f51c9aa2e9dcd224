"""What a port needs to speak TLS, from a file that may change; how connections use it is the transports' business."""
