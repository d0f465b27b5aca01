"""The meaning of a STOMP session: frames to broker operations, broker events to frames.

The package is sans-I/O, and the only one that knows both STOMP and AMQP. Frames, events and the time enter as
arguments; bytes for the client, bytes for the broker and operations (``ops``) leave as results. It has no socket,
clock, task or log.
"""
