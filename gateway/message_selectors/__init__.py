"""Selectors: conditions on the headers of messages, in the SQL-92 of JMS, with three-valued logic.

The package is sans-I/O, and a session may use it. It alone uses the parser library lark, and imports it only for a
gateway that may have selectors.
"""
