"""Probe `firewall`: listings of the tools, and a rule in a real namespace that has dropped a packet."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from hangdoc.evidence import Frame, Stack, Stacks
from hangdoc.evidence.network import Firewall, Rule
from hangdoc.evidence.stacks import MAKES_GROUP
from probes import Request, Tier
from probes.firewall import PROBE, rules_in
from tests.support.polling import until
from tests.support.tcp_peers import TcpPeer, tcp_peers
from tests.support.testbeds import network

MAKING = Stacks((Stack(1, "MainThread", (Frame(MAKES_GROUP, "/v/torch/distributed/distributed_c10d.py", 1),)),))
IPTABLES = """\
*filter
:INPUT DROP [4:240]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [17:1020]
[9:540] -A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
[3:180] -A INPUT -i eth0 -p tcp -m tcp --dport 1024:65535 -j REJECT --reject-with icmp-port-unreachable
[0:0] -A INPUT -p tcp -m tcp --dport 25 -j DROP
[5:300] -A INPUT -p udp -j DROP
[2:80] -A INPUT -m state --state INVALID -j DROP
COMMIT
*nat
:INPUT DROP [8:1]
"""
NFT = """\
table inet filter {
    chain input {
        type filter hook input priority filter; policy accept;
        tcp dport { 22, 29500 } counter packets 12 bytes 720 accept
        iifname "eth0" counter packets 6 bytes 360 drop
        meta l4proto udp counter packets 9 bytes 360 reject
    }
}
"""


@pytest.mark.parametrize(
    ("listing", "rules"),
    [
        (
            IPTABLES,
            [
                Rule("-P INPUT DROP", 4, False),
                Rule(
                    "-A INPUT -i eth0 -p tcp -m tcp --dport 1024:65535 -j REJECT --reject-with icmp-port-unreachable",
                    3,
                    True,
                ),
                Rule("-A INPUT -m state --state INVALID -j DROP", 2, False),
            ],
        ),
        (NFT, [Rule('iifname "eth0" counter packets 6 bytes 360 drop', 6, False)]),
        ("", []),
    ],
)
def test_rules_that_kept_something_back(listing: str, rules: list[Rule]) -> None:
    assert list(rules_in(listing)) == rules


def look(talker: TcpPeer, stacks: Stacks | None) -> Firewall | None:
    request = Request([talker.target(0)], Tier.EXAMINE, records={talker.pid: {"stacks": stacks}})
    seen = PROBE.observe(request)
    assert seen.unseen == ()
    return seen.by_pid.get(talker.pid)


def test_a_real_rule() -> None:
    network.require()
    assert shutil.which("iptables"), "apt-get install iptables"
    with network.network_testbed(2) as bed, tcp_peers(*bed.nodes) as (one, other):
        rule = ["iptables", "-w", "-A", "INPUT", "-p", "tcp", "--dport", "7000", "-j", "DROP"]
        subprocess.run(bed.nodes[0].command(*rule), check=True)
        before = look(one, MAKING)
        other.do(f"dial {bed.nodes[0].address} 7000")
        after = until(lambda: look(one, MAKING), lambda seen: seen and seen.rules)
        assert look(one, None) is None  # nobody asks
    assert before == Firewall(())
    assert after is not None
    assert [(rule.packets > 0, rule.refuses) for rule in after.rules] == [(True, False)]
    assert "--dport 7000 -j DROP" in after.rules[0].text
