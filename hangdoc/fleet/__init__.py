"""Many hosts: the protocol between agents and collector, transports, and the merge of what the hosts report.

Analysis and rules never see this room: they get one history, as from a single host.
"""
