"""Linux, read only: /proc, sockets, namespaces, cgroups, mounts, exits, files of other processes; a TCPStore client.

Nothing here knows Python stacks or objects (see `introspect`), changes another process, or judges.
"""
