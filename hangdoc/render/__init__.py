"""Renderers: terminal, live, JSON, Markdown. They receive a verdict and decide nothing."""
