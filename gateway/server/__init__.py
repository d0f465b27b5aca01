"""The asyncio shell around the sans-I/O core: sockets, timers, TLS, aio-pika, back-pressure."""
