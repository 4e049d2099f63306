"""How fast each rank computes, and why it is slow: CPU, memory, workload, batch size, precision, recompilation.

Waiting for data belongs to `data`, waiting for locks to `locks`.
"""
