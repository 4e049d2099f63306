"""Playbooks: schema, expressions and templates, loading, evaluation over facts. No rule knows a specific failure."""
