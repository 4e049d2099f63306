"""`hangdoc daemon`: watches every job of a node for weeks, within a budget, and survives its own restarts."""
