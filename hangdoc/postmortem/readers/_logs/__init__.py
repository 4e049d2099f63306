"""Parts of the log reader: from the lines of a file to events, stacks and exits, by process. No other format."""
