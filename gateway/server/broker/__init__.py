"""The broker side: AMQP connections, their channels, and the queues that sessions declare on them."""
