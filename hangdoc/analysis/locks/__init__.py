"""Mutexes, the GIL and lock files: who holds them, who waits, and whether the holder can release them."""
