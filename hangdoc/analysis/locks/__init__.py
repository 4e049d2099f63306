"""Mutexes, the GIL and lock files: who holds them, who waits."""
