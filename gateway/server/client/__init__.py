"""One connected client: its socket, its session, its timers, its limits, and its bridge to the broker."""
