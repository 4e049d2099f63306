"""Real training jobs, broken and healthy, started to be diagnosed and cleaned up."""
