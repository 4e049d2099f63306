"""TCP connections between ranks: counters, throughput, interfaces, faults, and the hosts to blame.

Facts come from sockets and interfaces only. Why a job does not start belongs to `analysis.startup`.
"""
