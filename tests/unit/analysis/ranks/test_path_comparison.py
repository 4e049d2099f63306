"""How the call paths of two ranks relate, on the source of a training script."""

from __future__ import annotations

from pathlib import Path

import pytest

from hangdoc.analysis.ranks.call_path import FrameVariables, Step
from hangdoc.analysis.ranks.path_comparison import Relation, relate
from hangdoc.evidence import Variable
from tests.support.synthetic_evidence import ParsedSource

SCRIPT = """\
def average(params):
    for p in params:
        if p.grad is not None:
            all_reduce(p.grad)

def train(rank, loader):
    for epoch in range(2):
        for step, batch in enumerate(loader):
            loss(batch).backward()
            average(params)
            if rank == 0:
                barrier()
            elif rank == 1:
                broadcast()
        all_reduce(epoch)
    return rank

def main():
    train(rank, loader)
    barrier()
    evaluate(); reconfigure(train_again())
    learn() if rank == 0 else act()
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ParsedSource:
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(SCRIPT)
    return ParsedSource.parse(str(path))


def call_path(module: ParsedSource, *calls: tuple[str, int]) -> list[Step]:
    return [Step(function, "job.py", line, module.place(line)) for function, line in calls]


MAIN, TRAIN = ("main", 19), "train"


@pytest.mark.parametrize(
    ("mine", "other", "kind", "loop"),
    [
        ([MAIN, (TRAIN, 9)], [MAIN, (TRAIN, 9)], "same", None),
        ([("main", 20)], [MAIN, (TRAIN, 9)], "left_loop", 8),
        ([MAIN, (TRAIN, 9)], [("main", 20)], "in_loop", 8),
        ([MAIN, (TRAIN, 15)], [MAIN, (TRAIN, 9)], "left_loop", 8),
        ([MAIN, (TRAIN, 9)], [MAIN, (TRAIN, 15)], "in_loop", 8),
        ([MAIN, (TRAIN, 12)], [MAIN, (TRAIN, 9)], "in_branch", None),
        ([MAIN, (TRAIN, 9)], [MAIN, (TRAIN, 12)], "out_of_branch", None),
        ([MAIN, (TRAIN, 12)], [MAIN, (TRAIN, 14)], "other_arm", None),
        ([MAIN, (TRAIN, 9)], [MAIN, (TRAIN, 10), ("average", 4)], "out_of_branch", None),
        ([("main", 21)], [("main", 20)], "ahead", None),
        ([("main", 20)], [("main", 21)], "behind", None),
        ([("main", 21), ("reconfigure", 30)], [("main", 21), ("train_again", 40)], "ahead", None),
        ([("main", 21), ("evaluate", 30)], [("main", 21), ("train_again", 40)], "behind", None),
        ([("main", 21), ("evaluate", 30)], [("main", 21), ("unknown", 40)], "other_call", None),
        ([("main", 22), ("learn", 30)], [("main", 22), ("act", 40)], "other_call", None),  # arms, and no order
        ([("main", 20)], [("other", 20)], "apart", None),
    ],
)
def test_relation(
    module: ParsedSource, mine: list[tuple[str, int]], other: list[tuple[str, int]], kind: str, loop: int | None
) -> None:
    found = relate(call_path(module, *mine), call_path(module, *other))
    assert found.kind == kind
    assert (found.loop.first if found.loop else None) == loop


def test_outermost_frames_may_be_cut_off(module: ParsedSource) -> None:
    own, peer = call_path(module, (TRAIN, 15)), call_path(module, MAIN, (TRAIN, 9))
    assert relate(own, peer).kind == "left_loop"
    assert relate(peer, own).kind == "in_loop"


def test_without_source_nothing_is_claimed() -> None:
    here = [Step("main", "job.py", 20)]
    there = [Step("main", "job.py", 19)]
    assert relate(here, there) == Relation("apart", here[0], there[0])


FRAMEWORK = """\
def advance(self, batch):
    if is_initialized() and self.world_size > 1:
        self.vote()
    if self.trainer.enabled:
        self.sync()
    self.callbacks(batch)
"""

HOOKS = """\
def setup(model, resumed):
    if resumed:
        return 7
    for p in model.parameters():
        broadcast(p)

def on_batch_end(trainer):
    if trainer.is_global_zero:
        all_reduce(norm)

def main():
    setup(model, resumed)
    for step in range(9):
        all_reduce(step)
"""


def parsed(text: str, path: Path) -> ParsedSource:
    path.write_text(text)
    return ParsedSource.parse(str(path))


@pytest.mark.parametrize("line", [3, 5])
def test_ranks_do_not_diverge_at_a_librarys_condition(tmp_path: Path, line: int) -> None:
    """Both pass `if self.trainer.enabled` in a framework; they diverge at the hook's own condition."""
    framework, hooks = parsed(FRAMEWORK, tmp_path / "loop.py"), parsed(HOOKS, tmp_path / "job.py")
    library = "/v/lib/python3.11/site-packages/framework/loop.py"

    def advance(line: int) -> Step:
        return Step("advance", library, line, framework.place(line))

    hook = Step("on_batch_end", "job.py", 9, hooks.place(9))
    found = relate([advance(line)], [advance(6), hook])
    assert (found.kind, found.branch and found.branch.test) == ("out_of_branch", "trainer.is_global_zero")
    assert relate([advance(6), hook], [advance(line)]).kind == "in_branch"


def test_a_loop_over_a_model_is_not_a_data_loop(tmp_path: Path) -> None:
    hooks = parsed(HOOKS, tmp_path / "job.py")
    found = relate(call_path(hooks, ("main", 14)), call_path(hooks, ("main", 12), ("setup", 5)))
    assert (found.kind, found.loop) == ("ahead", None)


ROUNDS = """\
def epoch(loader):
    barrier()
    for step, batch in enumerate(loader):
        all_reduce(batch)

def fit(loader):
    for number in range(9):
        epoch(loader)
    epoch(loader)
"""


@pytest.mark.parametrize(
    ("caller", "step", "kind"),
    [
        (8, 5.0, "left_loop"),  # in the next iteration of the outer loop: the inner loop is under way
        (8, 0.0, "behind"),  # it may still enter the loop
        (9, 5.0, "behind"),  # there is no outer loop
    ],
)
def test_a_rank_before_a_loop_that_is_under_way(tmp_path: Path, caller: int, step: float, kind: str) -> None:
    module = parsed(ROUNDS, tmp_path / "job.py")
    inside = call_path(module, ("fit", caller), ("epoch", 4))
    inside[1].variables = FrameVariables((Variable("step", str(step), number=step, kind="int"),))
    mine = call_path(module, ("fit", caller), ("epoch", 2))
    assert relate(mine, inside).kind == kind
    assert relate(inside, mine).kind == {"left_loop": "in_loop", "behind": "ahead"}[kind]


EPOCHS = """\
def fit(rank, loader, epochs):
    bad = 0
    for epoch in range(epochs):
        for batch in loader:
            all_reduce(batch)
        if rank == 0:
            barrier()
        if rank != -1:
            gather()
        if bad > 2:
            break
        finish(epoch)
    barrier()

def finish(epoch):
    if epoch % 5:
        return
    save(epoch)

def save(epoch):
    barrier()
"""
INNER = ("fit", 5)


@pytest.mark.parametrize(
    ("mine", "here", "there", "kind", "condition"),
    [
        ([("fit", 7)], 1, 2, "in_branch", "rank == 0"),  # its peers are an epoch ahead: they did not call it
        ([("fit", 7)], None, None, "in_branch", "rank == 0"),  # nor could they, whatever the epoch
        ([("fit", 7)], 1, 1, "left_loop", None),  # in one epoch: it ran fewer batches
        ([("fit", 9)], 1, 2, "behind", None),  # `rank != -1` holds on every rank: nothing shows why
        ([("fit", 9)], None, None, "left_loop", None),
        ([("fit", 12), ("finish", 18), ("save", 21)], 1, 2, "behind", None),
        ([("fit", 12), ("finish", 18), ("save", 21)], 2, 1, "left_loop", None),
    ],
)
def test_a_rank_past_a_loop_is_compared_by_the_loops_around_both(
    tmp_path: Path, mine: list[tuple[str, int]], here: int | None, there: int | None, kind: str, condition: str | None
) -> None:
    module = parsed(EPOCHS, tmp_path / "job.py")
    own, peer = call_path(module, *mine), call_path(module, INNER)
    own[0].variables, peer[0].variables = numbers(epoch=here), numbers(epoch=there)
    found, mirrored = relate(own, peer), relate(peer, own)
    assert (found.kind, found.branch and found.branch.test) == (kind, condition)
    assert mirrored.kind == {"in_branch": "out_of_branch", "left_loop": "in_loop", "behind": "ahead"}[kind]
    assert mirrored.branch == found.branch


@pytest.mark.parametrize(
    ("here", "there", "test"),
    [
        ({"bad": 3, "epochs": 9}, {"bad": 0, "epochs": 9}, "bad > 2"),
        ({"bad": 0, "epochs": 9}, {"bad": 0, "epochs": 9}, None),  # equal on both: it parted nobody
        ({"bad": 3, "epochs": 4}, {"bad": 0, "epochs": 9}, None),  # it had fewer epochs to run
        ({"bad": 3, "epochs": 9, "epoch": 8}, {"bad": 0, "epochs": 9, "epoch": 2}, None),  # it has run all
        ({"bad": 3, "epochs": 9, "epoch": 5}, {"bad": 0, "epochs": 9, "epoch": 5}, "bad > 2"),
        ({}, {}, "bad > 2"),
    ],
)
def test_a_counted_loop_is_left_early(
    tmp_path: Path, here: dict[str, int], there: dict[str, int], test: str | None
) -> None:
    module = parsed(EPOCHS, tmp_path / "job.py")
    own, peer = call_path(module, ("fit", 13)), call_path(module, INNER)
    own[0].variables, peer[0].variables = numbers(**here), numbers(**there)
    found = relate(own, peer)
    assert (found.kind, found.loop and found.loop.first, found.exit) == ("left_loop", 3, test)
    assert relate(peer, own).exit == test


SWEEP = """\
def sweep(trials):
    for trial in range(trials):
        for epoch in range(9):
            for batch in loader:
                all_reduce(batch)
            if bad > 2:
                break
        barrier()
"""


def test_a_loop_around_both_does_not_hide_an_early_exit(tmp_path: Path) -> None:
    module = parsed(SWEEP, tmp_path / "job.py")
    own, peer = call_path(module, ("sweep", 8)), call_path(module, ("sweep", 5))
    own[0].variables, peer[0].variables = numbers(trial=1, bad=3), numbers(trial=1, bad=0)
    found = relate(own, peer)
    assert (found.kind, found.exit) == ("left_loop", "bad > 2")


GUARDS = """\
def train(self, loader):
    for step, batch in enumerate(loader):
        all_reduce(batch)
        if step % self.every == 0:
            report(self)
        self.log(step)
        if self.rank != 0:
            continue
        all_gather(step)

def report(self):
    if self.is_main_process:
        all_gather(self.loss)

class Engine:
    def log(self, step):
        if step < 0:
            raise ValueError
        if not self.trainer.is_world_process_zero:
            return
        barrier()
"""


@pytest.mark.parametrize(
    ("mine", "condition"),
    [
        ([("train", 5), ("report", 13)], "self.is_main_process"),  # `step % self.every` is equal in one iteration
        ([("train", 6), ("log", 21)], "not self.trainer.is_world_process_zero"),
        ([("train", 9)], "self.rank != 0"),
        ([("train", 6), ("log", 17)], None),
    ],
)
def test_a_condition_on_the_rank_parts_wherever_it_is(
    tmp_path: Path, mine: list[tuple[str, int]], condition: str | None
) -> None:
    module = parsed(GUARDS, tmp_path / "job.py")
    own, peer = call_path(module, *mine), call_path(module, ("train", 3))
    own[0].variables, peer[0].variables = numbers(step=4), numbers(step=5)
    found, mirrored = relate(own, peer), relate(peer, own)
    assert found.branch == mirrored.branch
    assert (found.branch and found.branch.test) == condition
    assert (found.kind, mirrored.kind) == (("in_branch", "out_of_branch") if condition else ("ahead", "behind"))


LOOPS = """\
# The loops of a framework, further down in their file than the conditions in the user's.
#
#
#
#
class Loops:
    def fit(self):
        self.epoch(self.fetcher)
        self.sync()

    def epoch(self, fetcher):
        for batch_idx, batch in enumerate(fetcher):
            self.step(batch)
            self.hook(batch)
        self.report()
"""

HOOK = """\
class Module:
    def end_of_validation(self):
        if self.trainer.is_global_zero and self.epoch > 2:
            self.accuracy.compute()
"""


@pytest.mark.parametrize(
    ("hook", "operation", "here", "there", "kind"),
    [
        (True, "all_gather", 9, 9, "in_branch"),  # its peer has passed that hook, and left the loop
        (True, "all_gather", 9, None, "in_branch"),
        (True, "all_gather", 9, 8, "in_loop"),  # its peer has not made this iteration
        (True, "send", 9, 9, "in_loop"),  # its peer may have to receive
        (False, "all_reduce", 9, 9, "in_loop"),
    ],
)
def test_a_rank_waits_in_a_loop_in_a_call_that_its_peers_did_not_make(
    tmp_path: Path, hook: bool, operation: str, here: int, there: int | None, kind: str
) -> None:
    library = "/v/lib/python3.11/site-packages/framework/loops.py"
    loops, user = parsed(LOOPS, tmp_path / "loops.py"), parsed(HOOK, tmp_path / "job.py")

    def step(function: str, line: int, **counts: int | None) -> Step:
        return Step(function, library, line, loops.place(line), numbers(**counts))

    called = Step("end_of_validation", "job.py", 4, user.place(4))
    below = [called] if hook else []
    below.append(Step(operation, "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2000))
    own = [step("fit", 8), step("epoch", 14 if hook else 13, batch_idx=here), *below]
    # The counter of a loop that a rank has left is seen where the loops are in one function.
    peer = [step("fit", 9)] if there is None else [step("epoch", 15, batch_idx=there)]
    if there is not None:
        own = own[1:]
    found, mirrored = relate(own, peer), relate(peer, own)
    assert (found.kind, mirrored.kind) == (kind, {"in_branch": "out_of_branch", "in_loop": "left_loop"}[kind])
    assert found.branch == mirrored.branch
    assert bool(found.branch) == (kind == "in_branch")


WHILE = """\
class Trainer:
    def run(self, stop, epoch, epochs, loss):
        while {test}:
            for batch in self.loader:
                all_reduce(batch)
            epoch += 1
        barrier()
"""


@pytest.mark.parametrize(
    ("test", "ends"),
    [
        ("not self.done", "self.done"),
        ("not self.converged()", "self.converged()"),
        ("not stop", "stop"),
        ("loss > self.target", "not (loss > self.target)"),
        ("epoch < epochs", None),  # a short shard ends its last epoch first
        ("self.epoch < self.epochs", None),
        ("True", None),
    ],
)
def test_a_loop_of_epochs_is_left_by_a_flag(tmp_path: Path, test: str, ends: str | None) -> None:
    module = parsed(WHILE.format(test=test), tmp_path / "job.py")
    own, peer = call_path(module, ("run", 7)), call_path(module, ("run", 5))
    own[0].variables, peer[0].variables = numbers(epoch=4, epochs=9), numbers(epoch=3, epochs=9)
    found = relate(own, peer)
    assert (found.kind, found.loop and found.loop.first, found.exit) == ("left_loop", 3, ends)


def numbers(**values: int | None) -> FrameVariables:
    known = {name: value for name, value in values.items() if value is not None}
    return FrameVariables([Variable(name, str(value), number=value, kind="int") for name, value in known.items()])


COUNTED_LOOP = """\
def train(loader):
    for i, batch in enumerate(loader):
        skip = overflowed(batch)
        if not skip:
            all_reduce(batch)
    barrier()

def fetch(source):
    for i in range(100):
        try:
            batch = next(source)
        except StopIteration:
            break
        all_reduce(batch)
    barrier()

def search(source):
    for i, batch in enumerate(source):
        for part in batch:
            all_reduce(part)
    barrier()
"""


@pytest.mark.parametrize(
    ("function", "inside", "outside", "counts", "even"),
    [
        ("train", 5, 6, (9, 9), True),
        ("train", 5, 6, (9, 8), False),  # fewer batches
        ("train", 2, 6, (9, 9), False),  # its loader waits for the next batch
        ("fetch", 14, 15, (41, 41), False),  # the data may have ended in that iteration
        ("fetch", 14, 15, (99, 99), True),
        ("search", 20, 21, (9, 9), False),  # the loop within may be shorter
    ],
)
def test_ranks_that_ran_a_loop_equally_often(
    tmp_path: Path, function: str, inside: int, outside: int, counts: tuple[int, int], even: bool
) -> None:
    module = parsed(COUNTED_LOOP, tmp_path / "job.py")
    here = [Step(function, "job.py", outside, module.place(outside), numbers(i=counts[1]))]
    there = [Step(function, "job.py", inside, module.place(inside), numbers(i=counts[0]))]
    found, mirrored = relate(here, there), relate(there, here)
    assert (found.equal_laps, mirrored.equal_laps) == (even, even)
    assert (found.branch.test if found.branch else None) == ("not skip" if even and function == "train" else None)


EARLY_RETURN = """\
def loss(x, verbose):
    if not x:
        return 0
    if verbose:
        report(x)
    return x / norm(x)

def norm(x):
    all_reduce(x)

def sometimes(x):
    if not x:
        return 0
    if x > limit(x):
        all_reduce(x)

def rows(xs):
    for x in xs:
        if not x:
            return 0
        all_reduce(x)

def fit(loader):
    for step, x in enumerate(loader):
        value = loss(x, True)
        sometimes(x)
        rows(x)
        value.backward()
"""


@pytest.mark.parametrize(
    ("calls", "skip"),
    [
        ([("fit", 25), ("loss", 6), ("norm", 9)], "not x"),
        ([("fit", 26), ("sometimes", 15)], None),  # another condition decides as well
        ([("fit", 27), ("rows", 21)], None),  # the peer may have had fewer rows
        ([("fit", 25)], None),  # nothing below the place where they parted
    ],
)
def test_an_early_return_by_which_a_peer_left_out_a_call(
    calls: list[tuple[str, int]], skip: str | None, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(EARLY_RETURN)
    module = ParsedSource.parse(str(tmp_path / "job.py"))
    found = relate(call_path(module, *calls), call_path(module, ("fit", 28)))
    assert (found.skip.test if found.skip else None) == skip
    assert relate(call_path(module, ("fit", 28)), call_path(module, *calls)).skip is None
