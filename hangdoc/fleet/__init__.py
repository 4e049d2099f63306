"""Many hosts: how agents get there, what carries them, the protocol, and the hosts' views merged."""
