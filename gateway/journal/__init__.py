"""The traffic journal: lines about what sessions do, for people and for the pipeline."""
