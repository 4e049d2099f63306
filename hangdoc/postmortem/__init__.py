"""Post-mortem: files of a job become the same evidence that live probes record. Judging it belongs to `diagnose`."""
