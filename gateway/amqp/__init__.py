"""The hot part of the AMQP 0-9-1 wire: publish, deliver, acknowledge and confirm, as bytes.

The package is sans-I/O. It also encodes the methods for channels, queues and consumers of links. aio-pika does the
rest: it opens connections, keeps them alive and closes them. Property tests compare this codec with pamqp.
"""
