"""One connected client: its socket, its session, its timers and limits."""
