"""Linux, read only: processes, mounts, permissions, and the files that processes name."""
