"""The hot part of the AMQP 0-9-1 wire: publish, deliver, acknowledge and confirm, as bytes.

This room is pure. Everything else that AMQP needs (dialling, channels, declarations) is aio-pika's; pamqp is the oracle
that the property tests hold this codec against.
"""
