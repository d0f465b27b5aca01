"""A RabbitMQ for `make run`, the tests and the benchmarks: an existing one, or one that is started here.

`deploy.local.broker.running` is the entry point; `python -m deploy.local.run` is `make run`. Everything that is started
here listens on loopback only, and is stopped at the end.
"""
