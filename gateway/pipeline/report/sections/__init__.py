"""The parts of the report, each from the facts that it is about."""
