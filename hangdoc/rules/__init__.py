"""Playbooks: schema, conditions and templates, loading, evaluation over facts. No rule knows a specific failure."""
