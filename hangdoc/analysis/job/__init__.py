"""The job as a whole: which ranks there are, how they ended, whether it is stalled."""
