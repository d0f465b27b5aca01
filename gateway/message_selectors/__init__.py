"""Selectors: conditions on the headers of messages, in the SQL-92 of JMS, with three-valued logic.

The package is sans-I/O. It alone uses the parser library lark, and loads it only for a gateway that may have selectors.
"""
