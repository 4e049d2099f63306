"""The live watch, and the agent: samples, history, when to look closer, one verdict or a stream of events."""
