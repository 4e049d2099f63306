"""Finds and masks secrets in text, command lines and records. Nothing here reads a process or a file."""
