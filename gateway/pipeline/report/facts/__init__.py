"""What the tables of a lake say about a span, added up for the report."""
