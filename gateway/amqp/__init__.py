"""The hot part of the AMQP 0-9-1 wire: publish, deliver, acknowledge and confirm, as bytes.

The package is sans-I/O. Everything else that AMQP needs (connecting, channels, declarations) is aio-pika's. The
property tests compare this codec with pamqp.
"""
