"""TCP connections between ranks: counters, throughput, faults, interfaces, and who is to blame."""
