"""A RabbitMQ for this machine: found, or started as a private node, for `make run`, the tests and the benchmarks.

`deploy.local.broker.running` is the entry; `python -m deploy.local.run` is the `make run` job. Everything listens on
loopback only, and everything that is started here is also ended here.
"""
