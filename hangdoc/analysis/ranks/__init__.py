"""Ranks one by one and compared: call path, phase, process, CPU, progress, divergence. No collectives, no network."""
