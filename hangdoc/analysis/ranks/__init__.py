"""Ranks one by one and compared: which there are, how they ended, process, CPU, call path, phase, progress, divergence.

No collectives, no network.
"""
