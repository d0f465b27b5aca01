"""The STOMP wire: bytes to frames and back, for STOMP 1.0, 1.1 and 1.2.

This room is pure. It knows no socket, clock, log or broker; bytes enter as arguments and bytes or frames leave as
results.
"""
