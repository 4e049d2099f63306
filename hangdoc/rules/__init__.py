"""What a playbook may say: schema, expressions, templates; how it is loaded and evaluated over facts."""
