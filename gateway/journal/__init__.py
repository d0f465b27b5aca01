"""The traffic journal: what every session did, one line each, for people and for the pipeline."""
