"""The meaning of a STOMP session: frames to broker operations, broker events to frames.

This room is pure and the only one that knows both languages. Frames, events and the time enter as arguments; bytes
for the client, bytes for the broker and operations (``ops``) leave as results. It owns no socket, clock, task or log.
"""
