"""`hangdoc watch -- COMMAND`: starts a command, watches the ranks below it, and ends as the command ends."""
