"""Facts about a job that was never watched: which hangs are presumed, and the last stack of each rank.

Facts from its logs belong to `logs`, facts from its Flight Recorder dumps to `collectives`.
"""
