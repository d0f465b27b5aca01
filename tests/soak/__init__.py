"""Many sessions of mixed behaviour for a long time, with restarts of the broker: memory and latency stay flat."""
