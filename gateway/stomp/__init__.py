"""The STOMP wire: bytes to frames and back, for STOMP 1.0, 1.1 and 1.2.

The package is sans-I/O: it knows no socket, clock, log or broker. Bytes enter as arguments, and bytes or frames leave
as results.
"""
