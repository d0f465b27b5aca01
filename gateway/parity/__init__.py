"""STOMP transcripts, played against RabbitMQ's STOMP plugin and against the gateway."""
