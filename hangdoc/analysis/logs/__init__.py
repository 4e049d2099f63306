"""Facts from a job's logs: collective timeouts, rendezvous and hardware errors, the first failure and its victims.

Readers turn lines into events; this package only interprets events.
"""
