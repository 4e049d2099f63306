"""All that a report shows of one incident, with secrets masked: verdict, stacks, timeline, links. No rendering here."""
