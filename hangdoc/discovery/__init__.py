"""Which processes are ranks, and of which job. Nothing here looks into a rank."""
