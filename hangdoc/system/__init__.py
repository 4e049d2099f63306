"""Linux, read only: what the kernel says of processes, and the files that they name."""
