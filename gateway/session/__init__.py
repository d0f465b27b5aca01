"""The meaning of a STOMP session: client frames become AMQP frames and operations, and broker events become frames.

The package is sans-I/O, and the only one of the core that knows both STOMP and AMQP. It takes frames, events and the
time as arguments, and for the length of a turn a clock. It returns bytes for the client, bytes for the broker, and
operations (``ops``). It has no sockets, tasks or logs.
"""
