"""The bed that the other tests here stand on: an ordinary rank of another user is found, and nothing odd is said."""

from __future__ import annotations

import json

from tests.support.other_user import hangdoc, stranger

SLEEPER = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"


def test_a_rank_of_another_user_is_found() -> None:
    with stranger(SLEEPER, environment={"RANK": "0", "WORLD_SIZE": "1"}) as rank:
        done = hangdoc("watch", "--once", "--json", "--pids", str(rank.pid))
        verdict = json.loads(done.stdout)
        assert [found["pid"] for found in verdict["job"]["ranks"]] == [rank.pid], done.stderr
        assert rank.process.poll() is None
