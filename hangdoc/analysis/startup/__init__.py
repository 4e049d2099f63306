"""Why a job does not assemble: rendezvous, mesh, advertised addresses, settings that differ."""
