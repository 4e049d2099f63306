"""Tells receivers about incidents: once each, over restarts, and whatever a receiver does."""
