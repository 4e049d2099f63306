"""Log files: lines to events, each with its time and rank."""
