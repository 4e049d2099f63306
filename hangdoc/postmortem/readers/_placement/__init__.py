"""Where the ranks of a job run, as a text states it in passing.

People write it in prose, in tables, in host files and as options of launchers. `placement` joins what `statements`,
`tables`, `layout` and `numbering` find in the lines of a text. Every other reader gets its ranks from there, and
from `addresses` the host of an address that a message names.
"""
