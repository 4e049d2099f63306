"""Another CPython process from outside: its memory, interpreter, stacks, variables and source. Nothing runs in it.

`parsers` runs in a sandbox, `source_files` asks it, `source_records` turns its answers into evidence. No probes here.
"""
