"""Watching jobs: sampler, sources, history, when to look closer, one verdict or the live watch, and the agent.

It decides when to look, never what a look means: verdicts come from `diagnose`.
"""
