"""Facts about a job that was never watched: what the last stack of each rank shows.

Facts from its logs belong to `logs`, facts from its Flight Recorder dumps to `collectives`, presumed hangs to `job`.
"""
