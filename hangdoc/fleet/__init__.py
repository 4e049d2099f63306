"""Many hosts: how agents get there, what carries them, and their views put together."""
