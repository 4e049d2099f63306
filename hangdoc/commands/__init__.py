"""The commands, one file each: options, exit code, and a call. What a command needs is imported when it runs."""
