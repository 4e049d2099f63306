"""What only the remains of a dead job can show: its end, and the last stack of each rank."""
