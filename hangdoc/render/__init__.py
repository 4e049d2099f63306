"""Renderers: terminal, live view, JSON, Markdown, HTML. They receive a verdict and decide nothing."""
