"""A STOMP gateway in front of RabbitMQ: STOMP 1.0, 1.1 and 1.2 in, AMQP 0-9-1 out."""

__version__ = "0.1.0"
