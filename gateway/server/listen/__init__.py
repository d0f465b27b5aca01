"""The listening side: sockets, TLS, the PROXY protocol and WebSocket, up to a connected client."""
