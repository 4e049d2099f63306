"""Collectives: who waits for whom in which group, with which tensors; Flight Recorder histories (`fr_*`)."""
