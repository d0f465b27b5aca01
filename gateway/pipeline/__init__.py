"""Turns journals and RabbitMQ streams into tables and a report, and sends archived messages again. Needs its extra."""
