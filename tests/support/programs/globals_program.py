"""A training script with its loop at module level."""

import json
import math
import sys
import time
from pathlib import Path

count, negative, wide, wider, zero = 12, -5, 2**40 + 1, -(2**45), 0
huge = 2**90
rate, endless, flag, nothing = 1.5, math.inf, True, None
name, accented, empty, long = "resnet", "é", "", "x" * 500
items, pair, table = [1, 2, 3], (1,), {"a": 1, "b": 2}
api_key = "sk-abcdefghijklmnopqrstuv"
gone = 1
del gone


class Model:
    pass


def train():
    pass


model = Model()
here = Path(__file__)
step = 0
print(json.dumps(sys.version.split()[0]), flush=True)
while True:
    step += 1
    time.sleep(0.01)
