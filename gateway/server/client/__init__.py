"""A connected client: its socket, session, timers, limits, and the bridge to the broker."""
