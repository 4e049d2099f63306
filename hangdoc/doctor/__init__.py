"""What hangdoc may see on this host, and the one thing to change where it may not."""
