"""Linux, read only: /proc, sockets, namespaces, cgroups, mounts, files named by a process. Nothing about Python."""
