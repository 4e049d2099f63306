from __future__ import annotations

import json

from hangdoc.render.json import verdict_line
from tests.support.incidents import ENEMY
from tests.support.verdicts import hostile


def test_hostile_text_is_one_line_of_ascii() -> None:
    line = verdict_line(hostile(ENEMY))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["findings"][0]["summary"] == ENEMY
