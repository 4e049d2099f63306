"""Finds the training ranks of this host and groups them into jobs. Reads only /proc, never the memory of a rank."""
