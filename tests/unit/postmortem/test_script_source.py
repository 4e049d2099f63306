"""Source lines of a job that has ended: used only if they fit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hangdoc.evidence import Frame, RankEvidence, Snapshot, Source, Stack, Stacks, Target
from hangdoc.evidence.logs import Aftermath
from hangdoc.postmortem.script_source import Call, with_peers, with_source

C10D = "/env/site-packages/torch/distributed/distributed_c10d.py"
SCRIPT = """import torch.distributed as dist


def train(loader):
    for step, batch in enumerate(loader):
        loss(batch)


def finish():
    dist.barrier()


train([])
finish()
"""


def shot(file: str, frames: Sequence[tuple[str, int]] = (("finish", 10), ("<module>", 14))) -> Snapshot:
    stack = Stack(1, "MainThread", tuple(Frame(name, file, line, file) for name, line in frames))
    records = {"stacks": Stacks((stack,)), "aftermath": Aftermath(("stacks",))}
    return Snapshot("a", 0.0, "", (RankEvidence(Target(1, 0, "a", 0), None, records),))


def places(
    snapshot: Snapshot, given: Sequence[Path] = (), taken: float | None = None
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    problems: list[str] = []
    ((rank,),) = [found.ranks for found in with_source([snapshot], given, taken, problems.append)]
    record = rank.records.get("source")
    return {at: place.calls for at, place in record.places.items()} if isinstance(record, Source) else {}, problems


def written(folder: Path, text: str = SCRIPT, name: str = "train.py") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_given_script(tmp_path: Path) -> None:
    path = written(tmp_path)
    found, problems = places(shot("train.py"), [path])
    assert found == {"train.py:10": ("dist.barrier",), "train.py:14": ("finish",)}
    assert problems == []
    assert places(shot("/gone/train.py"), [path])[0].keys() == {"/gone/train.py:10", "/gone/train.py:14"}


def test_other_version_of_the_script_is_refused(tmp_path: Path) -> None:
    found, problems = places(shot("train.py"), [written(tmp_path, "import os\n" + SCRIPT)])
    assert found == {}
    assert len(problems) == 1
    assert "not the train.py that ran" in problems[0]
    assert places(shot("train.py"), [written(tmp_path, "def finish(:\n")])[0] == {}


def test_fitting_script_of_two(tmp_path: Path) -> None:
    wrong, right = written(tmp_path / "a", "import os\n" + SCRIPT), written(tmp_path / "b")
    assert len(places(shot("train.py"), [wrong, right])[0]) == 2


def test_script_at_the_path_in_the_stack(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert len(places(shot(str(path)))[0]) == 2
    os.utime(path, (1000, 1000))
    assert len(places(shot(str(path)), taken=2000.0)[0]) == 2
    found, problems = places(shot(str(path)), taken=500.0)
    assert (found, len(problems)) == ({}, 1), "it has changed since"


def test_libraries_and_other_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    found, problems = places(shot(str(tmp_path / "fifo.py")))
    assert found == {}
    assert problems == [
        "the source of fifo.py was not found: add it (`hangdoc report ... fifo.py`) to see loops and branches"
    ]
    assert places(shot("/etc/passwd")) == ({}, [])
    assert places(shot("torch.py"), [tmp_path / "gone" / "torch.py"])[0] == {}


def test_live_evidence_stays_unchanged(tmp_path: Path) -> None:
    live = shot("train.py")
    (rank,) = live.ranks
    watched = Snapshot("a", 0.0, "", (RankEvidence(rank.target, None, {"stacks": rank.records["stacks"]}),))
    assert places(watched, [written(tmp_path)])[0] == {}


def test_peer_of_a_receive_becomes_a_variable_of_its_frame() -> None:
    frames = (Frame("recv", C10D, 9), Frame("wrapper", "/env/site-packages/torch/x.py", 3), Frame("f", "/t.py", 1))
    stacks = Stacks((Stack(1, "MainThread", frames),))
    known = {Call("/t.py", 1, "recv"): 1}
    ((arguments,),) = [[frame.variables for frame in stack.frames[:1]] for stack in with_peers(stacks, known).threads]
    assert arguments is not None
    assert [(one.name, one.number) for one in arguments] == [("src", 1.0)]
    assert with_peers(stacks, {}) is stacks
