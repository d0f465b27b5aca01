"""The pipeline: from the journals of any number of gateways to tables and a report. Needs the extra ``pipeline``."""
