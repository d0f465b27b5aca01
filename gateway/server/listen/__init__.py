"""The listening side: sockets, the PROXY protocol, TLS and WebSocket, up to a connected client."""
