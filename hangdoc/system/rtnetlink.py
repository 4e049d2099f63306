"""Links, addresses, default routes and rate limits in a network namespace, from rtnetlink.

Importing pyroute2 takes 12 MB, so a child process does it. The child starts in the namespace of the calling thread.
`query()` is for the caller; the rest of this file is the child.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

TIMEOUT_S = 10.0  # usually 0.2 s; longer on an overloaded host

_PLAIN = ("index", "flags", "ifi_type")
_ATTRIBUTES = ("IFLA_IFNAME", "IFLA_ADDRESS", "IFLA_MTU", "IFLA_OPERSTATE", "IFLA_CARRIER", "IFLA_STATS64")


def query() -> dict[str, Any]:
    """`links` with their attributes, `addresses` as (link, address, prefix length), the links of `default` routes, and
    `rates` as (link, queueing discipline, bytes per second).

    Raises OSError with the last line of the child's error output.
    """
    # Not in our working folder: it may belong to the job, with modules that shadow libraries.
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
    """Rate limits by queueing disciplines: a token bucket, or an HTB with a single class."""
    for queue in route.get_qdiscs():
        index, kind, options = queue["index"], queue.get("TCA_KIND"), queue.get("TCA_OPTIONS")
        if kind == "tbf" and options and (limits := options.get_attr("TCA_TBF_PARMS")):
            yield index, kind, limits["rate"]
        elif kind == "htb":
            rates = [_class_rate(htb_class) for htb_class in route.get_classes(index=index)]
            yield from ((index, kind, rate) for rate in rates[:1] if rate and len(rates) == 1)


def _class_rate(htb_class: Any) -> int | None:
    limits = htb_class.get("TCA_OPTIONS") and htb_class.get("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")
    return int(limits["ceil"]) if limits else None


def _link(message: Any) -> dict[str, Any]:
    info = message.get("IFLA_LINKINFO")
    return {
        **{name: message[name] for name in _PLAIN},
        **{name: message.get(name) for name in _ATTRIBUTES},
        "kind": info.get("IFLA_INFO_KIND") if info else None,
    }


if __name__ == "__main__":
    print(json.dumps(_ask()))
