"""hangdoc: why a distributed PyTorch job is stuck or slow, which rank or link did it, and what to do."""

__version__ = "0.1.0"
