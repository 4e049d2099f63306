"""Is the job stalled, and since when? What blocks a rank, and what goes on for it. Causes of a stall live elsewhere."""
