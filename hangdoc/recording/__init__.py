"""Snapshots and verdicts to disk and back, and the verdict as JSON. Nothing here observes or judges."""
