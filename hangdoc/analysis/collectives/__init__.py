"""Who waits for whom in which collective, with what arguments; Flight Recorder histories (`fr_*`)."""
