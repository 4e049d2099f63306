"""The child that hands one message to Apprise: the question as JSON on stdin, exit code 0 once it is delivered."""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Deliver the message on stdin; 1: the service refused, 2: Apprise does not know the address."""
    from apprise import Apprise

    asked = json.load(sys.stdin)
    service = Apprise()
    if not service.add(asked["url"]):
        return 2
    return 0 if service.notify(body=asked["body"], title=asked["title"], notify_type=asked["type"]) else 1


if __name__ == "__main__":
    sys.exit(main())
