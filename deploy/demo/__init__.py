"""The demonstration of journal and pipeline: traffic of many kinds, then tables and a report of it.

`python -m deploy.demo` is `make demo-pipeline`. It has a broker and a gateway of its own, and ends both.
"""
