"""The broker side: AMQP connections, their channels, and declarations of queues."""
