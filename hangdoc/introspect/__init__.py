"""What runs in another process: its interpreter, its source."""
