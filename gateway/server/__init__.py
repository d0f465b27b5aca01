"""The workshop: sockets, clocks, TLS, aio-pika and back-pressure around the pure rooms."""
