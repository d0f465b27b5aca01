"""The benchmark: the gateway beside RabbitMQ's own STOMP plugin and plain AMQP, on one broker, in alternation.

Run `python -m tests.bench --help`. What is where:

* `targets`    the rows, their units, and the ratio that each must reach: the one table
* `rows`       what each row about messages does and how it proves that nothing was lost, and the list of all rows
* `session_rows` the rows about sessions, subscriptions and waiting
* `idle`       the rows about memory
* `rounds`     in which order they are measured
* `wire`       the load client's connection and its loop
* `other_wires` the same over TLS and WebSocket
* `amqp_wire`  the same in AMQP, for the side `limit`
* `payload`    the bytes it sends, and how the received ones are checked
* `environment` what is measured (broker, sides, processes), and the stopwatch
* `startup`    starts it, or uses what is already running
* `broker`     the broker itself, over AMQP and through rabbitmqctl
* `processes`  CPU seconds, memory and listeners from /proc
* `report`     medians, ratios, the printed tables and the JSON
* `neighbours` what one client's work costs another, a program of its own; `neighbour_loads` has its rows,
  `neighbour_run` the client that does what they say, `neighbour_servers` starts what is measured, `neighbour_probe` is
  the neighbour's process
* `micro`      micro-benchmarks of single functions, a program of its own
* `instructions` the bytecode instructions that these functions execute, and what is recorded of them
"""
