"""What the logs of a job say: events, timeouts, errors, the first failure."""
