"""The job as a whole: which ranks it has, how they ended, whether it is stalled. Causes of a stall live elsewhere."""
