"""The hot part of the AMQP 0-9-1 wire: publish, deliver, acknowledge and confirm, as bytes.

The package is sans-I/O. It also has the few methods of links' channels. Everything else that AMQP needs is aio-pika's:
connections, and what is not a link's. The property tests compare this codec with pamqp.
"""
