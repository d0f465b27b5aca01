"""The broker side: AMQP connections, their channels, and what sessions ask of them."""
