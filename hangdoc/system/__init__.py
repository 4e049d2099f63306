"""Linux, read only: what the kernel shows of processes, mounts and permissions."""
