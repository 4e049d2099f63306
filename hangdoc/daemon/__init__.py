"""The watchdog that runs for weeks: configuration, metrics, and the loop that feeds them."""
