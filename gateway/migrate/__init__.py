"""Translates the configuration of RabbitMQ's STOMP plugins into one of the gateway."""
