"""How fast each rank computes, and what holds it back: CPU, memory, workload, precision, recompilation."""
