"""hangdoc's tests: CONTRIBUTING.md says which folder holds what."""
