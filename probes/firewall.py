"""Probe `firewall`: rules in a rank's network namespace that have dropped or rejected TCP packets.

Listed by `iptables-save` or `nft`, which change nothing, and only while a rank creates a process group. Rules without
matched packets are left out.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

from hangdoc.evidence import Unseen
from hangdoc.evidence.network import Firewall, Rule
from hangdoc.evidence.stacks import making_group
from hangdoc.redaction.text import redact_text
from hangdoc.system import programs
from hangdoc.system.netns import call_inside, namespace
from probes import Observation, Request, Tier

TIMEOUT_S = 2.0
MAX_RULES = 16
_LONGEST = 200
_IPTABLES = re.compile(r"\[(\d+):\d+\] (-A \S+ .*-j (DROP|REJECT)\b.*)")
_POLICY = re.compile(r":(INPUT|OUTPUT|FORWARD) DROP \[(\d+):\d+\]")
_NFT = re.compile(r"(.*\bcounter packets (\d+) bytes \d+ (drop|reject)\b.*)")
_TABLE = re.compile(r"\*(\w+)")
_OTHER = re.compile(r"-p (?!tcp\b|all\b)\w+|(?:ip|meta) (?:protocol|l4proto) (?!tcp\b)\w+")


class FirewallProbe:
    """Reads each network namespace once; the ranks in it that create a process group get the same record."""

    name = "firewall"
    scope = "rank"
    tier = Tier.EXAMINE
    needs = "root"
    record = Firewall
    order = 96
    steady = False

    def observe(self, request: Request) -> Observation:
        seen: dict[int, Firewall | None] = {}
        records: dict[int, Firewall] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            if not making_group((request.records or {}).get(target.pid, {}).get("stacks")) or os.geteuid() != 0:
                continue
            try:
                where = namespace(target.pid)
                if where not in seen:
                    seen[where] = call_inside(target.pid, _look, timeout_s=3 * TIMEOUT_S)
            except (OSError, subprocess.SubprocessError) as error:
                unseen.append(Unseen(self.name, f"its firewall could not be read: {error}", target.rank, target.pid))
                continue
            if (found := seen[where]) is not None:
                records[target.pid] = found
        return Observation(records, unseen=tuple(unseen))


def _look() -> Firewall | None:
    """Rules of the calling thread's network namespace; None: no tool to list them."""
    listed = [_listing(f"{name}tables-save", "-c") for name in ("ip", "ip6")]
    if not any(listed):
        listed = [_listing("nft", "list", "ruleset")]
    texts = [text for text in listed if text is not None]
    return Firewall(tuple(rule for text in texts for rule in rules_in(text))[:MAX_RULES]) if texts else None


def _listing(tool: str, *arguments: str) -> str | None:
    path = programs.find(tool, ("/usr/sbin", "/sbin"))
    if path is None:
        return None
    done = subprocess.run(
        [path, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        timeout=TIMEOUT_S, check=False, cwd="/",
    )  # fmt: skip
    return done.stdout if done.returncode == 0 else None


def rules_in(listing: str) -> Iterator[Rule]:
    """Rules that have dropped or rejected packets, TCP possibly among them."""
    table = ""
    for line in map(str.strip, listing.splitlines()):
        if named := _TABLE.fullmatch(line):
            table = named[1]
        if found := _IPTABLES.fullmatch(line):
            rule = Rule(redact_text(found[2])[:_LONGEST], int(found[1]), found[3] == "REJECT")
        elif (found := _POLICY.fullmatch(line)) and table == "filter":
            rule = Rule(f"-P {found[1]} DROP", int(found[2]), False)
        elif found := _NFT.fullmatch(line):
            rule = Rule(redact_text(found[1])[:_LONGEST], int(found[2]), found[3] == "reject")
        else:
            continue
        if rule.packets and not _OTHER.search(rule.text):
            yield rule


PROBE = FirewallProbe()
