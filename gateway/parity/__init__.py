"""Plays STOMP transcripts on RabbitMQ's STOMP plugin and on the gateway, and compares what both did."""
