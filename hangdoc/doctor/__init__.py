"""Checks of what hangdoc can see on a host, each with one fix. A check never touches a job."""
