"""What a dead job left behind: its files become the evidence of a live watch."""
