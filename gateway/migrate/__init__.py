"""From the configuration of RabbitMQ's STOMP plugins to one of the gateway."""
