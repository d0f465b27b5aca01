"""The STOMP wire: bytes to frames and back, for STOMP 1.0, 1.1 and 1.2.

The package is sans-I/O: it has no sockets, clocks or logs, and does not know the broker. It takes bytes as arguments,
and returns bytes or frames.
"""
