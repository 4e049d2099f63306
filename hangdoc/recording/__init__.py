"""Snapshots and verdicts to disk and back. Nothing here judges."""
