"""Addresses, default routes, links and the rates they are held to in a network namespace, by rtnetlink.

pyroute2 takes 12 MB to import. A process of its own gives them back, and starts in the namespace of the thread that
asks: `query()` is for the observer, the rest of this file is that process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

TIMEOUT_S = 10.0  # measured 0.2 s; a host with more runnable threads than cores needs longer

_PLAIN = ("index", "flags", "ifi_type")
_ATTRIBUTES = ("IFLA_IFNAME", "IFLA_ADDRESS", "IFLA_MTU", "IFLA_OPERSTATE", "IFLA_CARRIER", "IFLA_STATS64")


def query() -> dict[str, Any]:
    """`links` with their attributes, `addresses` as (link, address, length of the prefix), links of `default` routes,
    `rates` as (link, kind, bytes per second), as the kernel has them.

    Raises OSError: the last line of what the process complained of.
    """
    # Not in our working folder, which may be the job's: a module of its might take the place of a library's.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if os.path.isabs(path))}
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        cwd="/", env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False,
        start_new_session=True,
    )  # fmt: skip
    if done.returncode != 0:
        raise OSError((done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _ask() -> dict[str, Any]:
    from pyroute2 import IPRoute

    with IPRoute() as route:
        addresses = [(m["index"], m.get("IFA_LOCAL") or m.get("IFA_ADDRESS"), m["prefixlen"]) for m in route.get_addr()]
        routes = [m for family in (socket.AF_INET, socket.AF_INET6) for m in route.get_default_routes(family=family)]
        links = [_link(message) for message in route.get_links()]
        rates = list(_rates(route))
    return {"addresses": addresses, "default": [m.get("RTA_OIF") for m in routes], "links": links, "rates": rates}


def _rates(route: Any) -> Iterator[tuple[int, str, int]]:
    """What queues hold their links to: a token bucket, or the one class that all of a link goes through."""
    for queue in route.get_qdiscs():
        index, kind, options = queue["index"], queue.get("TCA_KIND"), queue.get("TCA_OPTIONS")
        if kind == "tbf" and options and (limits := options.get_attr("TCA_TBF_PARMS")):
            yield index, kind, limits["rate"]
        elif kind == "htb":
            rates = [_class_rate(one) for one in route.get_classes(index=index)]
            yield from ((index, kind, rate) for rate in rates[:1] if rate and len(rates) == 1)


def _class_rate(one: Any) -> int | None:
    limits = one.get("TCA_OPTIONS") and one.get("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")
    return int(limits["ceil"]) if limits else None


def _link(message: Any) -> dict[str, Any]:
    made = message.get("IFLA_LINKINFO")
    return {
        **{name: message[name] for name in _PLAIN},
        **{name: message.get(name) for name in _ATTRIBUTES},
        "kind": made.get("IFLA_INFO_KIND") if made else None,
    }


if __name__ == "__main__":
    print(json.dumps(_ask()))
