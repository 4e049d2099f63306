"""Why a job does not start: rendezvous, gloo mesh, advertised addresses, interfaces, different settings.

Anything after the first process group exists belongs to another room.
"""
