"""The broker side: the choice of a broker, AMQP connections, their channels, and declarations of queues."""
