//! Hands a request to the reference servers over a Unix socket, and their answer to the client.
