"""Another CPython process from outside: its memory, interpreter, stacks, variables and source. Nothing runs in it."""
