"""Parameters of replicas, compared over many looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hangdoc.analysis.compute.replicas import ReplicaFacts
from hangdoc.analysis.facts import Facts
from hangdoc.evidence import ProcessGroup, ProcessGroups, Variable
from hangdoc.evidence.parameters import Parameter, Parameters, Value
from tests.support.judge import judge
from tests.support.synthetic_evidence import At, Stage, number

SCRIPT = """\
def train(model):
    for step, x in enumerate(loader):
        loss = model(x)
        loss.backward()
"""
LOOKS = 9
STEP = 2  # changes by one step of AdamW
Rule = Callable[[int, int], Sequence[Parameter]]  # parameters of a rank in a look


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def parameter(version: int, digest: object, name: str = "model.weight", **more: object) -> Parameter:
    return Parameter(name, (8, 8), "float32", "cpu", True, (Value(version, str(digest)),), **more)  # type: ignore[arg-type]


def facts(
    stage: Stage,
    rule: Rule,
    ranks: int = 3,
    wrapper: str | None = "DistributedDataParallel",
    groups: Sequence[ProcessGroup] = (),
    sharded: str | None = None,
    inner: Sequence[tuple[str, str]] = (),
    looks: int = LOOKS,
) -> Facts:
    def at(rank: int, look: int) -> At:
        held = Parameters(tuple(rule(rank, look)), wrapper, 7 if groups else None, sharded)
        records = {"parameters": held, "groups": ProcessGroups(tuple(groups), rank, ranks)}
        step = {"train": [number("step", look), Variable("model", "<Net at 0x70>", kind="object")]}
        return At([("train", 3)], inner, step, state="R", records=records)

    return stage.facts(*[[at(rank, look) for rank in range(ranks)] for look in range(looks)])


def replicas(found: Facts) -> list[ReplicaFacts]:
    return [rank.replicas for rank in found.ranks]


def apart(found: Facts) -> list[bool | None]:
    return [one.apart for one in replicas(found)]


def in_step(rank: int, look: int) -> list[Parameter]:
    return [parameter(STEP * look, f"state {look}")]


def one_differs(rank: int, look: int) -> list[Parameter]:
    return [parameter(STEP * look, f"state {look} of {rank == 2}")]


def test_replicas_in_step(stage: Stage) -> None:
    found = facts(stage, in_step)
    assert apart(found) == [False] * 3
    assert found.job.replicas.sides == 1


def test_the_rank_that_differs_from_the_majority(stage: Stage) -> None:
    found = facts(stage, one_differs)
    assert [(one.apart, one.odd) for one in replicas(found)] == [(True, False), (True, False), (True, True)]
    assert found.job.replicas.sides == 2
    (finding,) = judge().verdict(found).findings
    assert (finding.playbook, finding.confidence) == ("replicas-differ", "medium")
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.summary == (
        "Rank 2 trains another model than ranks 0-1: parameter model.weight was never equal on them."
    )


def test_without_a_majority_all_are_odd(stage: Stage) -> None:
    found = facts(stage, lambda rank, look: [parameter(STEP * look, f"state {look} of {rank}")])
    assert [(one.apart, one.odd) for one in replicas(found)] == [(True, True)] * 3
    summary = judge().verdict(found).findings[0].summary
    assert summary == "Ranks 0-2 train 3 different models: parameter model.weight was never equal on them."


def test_a_restored_replica_is_ahead_by_a_constant(stage: Stage) -> None:
    """It was written once more than the others. If it is equal, nothing is wrong."""
    for digest, expected in (("state {look}", [False] * 3), ("state {look} of {odd}", [True] * 3)):

        def rule(rank: int, look: int, digest: str = digest) -> list[Parameter]:
            return [parameter(STEP * look + (rank == 2), digest.format(look=look, odd=rank == 2))]

        assert apart(facts(stage, rule)) == expected


def test_a_constant_difference_within_the_optimizer_proves_nothing(stage: Stage) -> None:
    """A replica whose optimizer is slow is in another state than one that is done."""
    optimizer = [("_multi_tensor_adamw", "/v/lib/python3.11/site-packages/torch/optim/adamw.py")]

    def rule(rank: int, look: int) -> list[Parameter]:
        return [parameter(STEP * look + (rank == 2), f"state {look} of {rank == 2}")]

    assert apart(facts(stage, rule, inner=optimizer)) == [None] * 3


def test_ranks_that_train_at_their_own_pace(stage: Stage) -> None:
    found = facts(stage, lambda rank, look: [parameter((100 + 9 * rank) * look + rank, f"{look} of {rank}")])
    assert apart(found) == [True] * 3
    assert replicas(found)[0].drift == 18 * (LOOKS - 1)


def test_a_rank_that_leaves_out_some_of_its_steps(stage: Stage) -> None:
    """No state of it is one of its peers; its count falls behind, here by one in four."""

    def rule(rank: int, look: int) -> list[Parameter]:
        return [parameter(100 + 4 * look - (rank == 2) * (30 + look), f"{look} of {rank == 2}")]

    for looks, expected in ((LOOKS, None), (20, True)):
        found = facts(stage, rule, looks=looks)
        assert apart(found) == [expected] * 3
        assert [one.drift for one in replicas(found)] == [looks - 1] * 3


def test_too_few_looks(stage: Stage) -> None:
    assert apart(facts(stage, one_differs, looks=5)) == [None] * 3


def test_what_all_had_from_the_start_proves_nothing(stage: Stage) -> None:
    """Replicas of one seed begin with equal values, also of a row that is changed late."""

    def rule(rank: int, look: int) -> list[Parameter]:
        return [parameter(STEP * look, "start" if look < 3 else f"{look} of {rank}")]

    assert apart(facts(stage, rule)) == [True] * 3
    assert apart(facts(stage, lambda rank, look: [parameter(0, "frozen")])) == [None] * 3
    assert apart(facts(stage, lambda rank, look: [parameter(0, f"frozen on {rank}")])) == [None] * 3


@pytest.mark.parametrize(
    ("gradient", "found"),
    [
        (lambda rank, look: f"gradient {look}", [True] * 3),
        (lambda rank, look: f"gradient {look} of {rank}", [False, None, False]),  # it may use the model only
        (lambda rank, look: "" if rank == 1 else f"gradient {look}", [False, None, False]),
        (lambda rank, look: f"gradient {look // 4}", [False, None, False]),  # too few to be sure
    ],
    ids=["the same gradients", "gradients of its own", "no gradients", "few gradients"],
)
def test_a_rank_that_never_applies_the_gradients_it_shares(
    stage: Stage, gradient: Callable[[int, int], str], found: list[bool | None]
) -> None:
    def rule(rank: int, look: int) -> list[Parameter]:
        held = (0, "start") if rank == 1 else (STEP * look, f"state {look}")
        return [parameter(*held, gradient=gradient(rank, look))]

    seen = facts(stage, rule, wrapper=None)
    assert apart(seen) == found
    if found[1]:
        assert [one.odd for one in replicas(seen)] == [False, True, False]
        assert replicas(seen)[1].stood == LOOKS


def test_a_rank_that_no_longer_applies_the_gradients_it_shares(stage: Stage) -> None:
    def rule(rank: int, look: int) -> list[Parameter]:
        at = min(look, 3) if rank == 1 else look
        return [parameter(STEP * at, f"state {at}", gradient=f"gradient {look}")]

    seen = replicas(facts(stage, rule, wrapper=None))
    assert [(one.apart, one.odd) for one in seen] == [(True, False), (True, True), (True, False)]
    assert seen[1].stood == LOOKS - 3


def test_a_step_is_enough_to_see_that_replicas_are_equal(stage: Stage) -> None:
    """Ranks that were once seen with an equal new value are in step, however rarely they are read together."""

    def rule(rank: int, look: int) -> list[Parameter]:
        return [parameter(STEP * look, "met" if look == 5 else f"{look} of {rank}")]

    assert apart(facts(stage, rule)) == [False] * 3


def test_changes_that_torch_does_not_count(stage: Stage) -> None:
    assert apart(facts(stage, lambda rank, look: [parameter(1, f"{look} of {rank}")])) == [None] * 3


def test_parts_of_one_model_are_not_compared(stage: Stage) -> None:
    """Shards, and ranks with smaller groups, unless a wrapper replicates within one of them."""
    whole = ProcessGroup(1, "0", (0, 1, 2, 3), True)
    pairs = [ProcessGroup(7, "1", (0, 2)), ProcessGroup(8, "2", (1, 3))]
    assert apart(facts(stage, one_differs, 4, sharded="FSDPLinear")) == [None] * 4
    assert apart(facts(stage, one_differs, 4, wrapper=None, groups=[whole, *pairs])) == [None] * 4
    assert apart(facts(stage, one_differs, 4, groups=[whole, *pairs[::-1]]))[2] is True


def test_experts_that_a_wrapper_leaves_alone(stage: Stage) -> None:
    """Their gradients differ; where those of a parameter that differs are equal, it has been set apart."""
    for first, later, expected in (("1", "2", []), ("", "", ["replicas-differ"]), ("1", "", ["replicas-differ"])):

        def rule(rank: int, look: int, first: str = first, later: str = later) -> list[Parameter]:
            gradient, other = (f"{look}{' of ' + each + str(rank) if each else ''}" for each in (first, later))
            expert = parameter(STEP * look, f"{look} of {rank}", "model.expert", gradient=gradient, gradients=(other,))
            return [*in_step(rank, look), expert]

        found = facts(stage, rule)
        assert [(one.apart, one.partly) for one in replicas(found)] == [(True, True)] * 3
        assert [finding.playbook for finding in judge().verdict(found).findings] == expected


def test_models_without_a_wrapper_may_be_parts_of_one(stage: Stage) -> None:
    """A pipeline or a tensor-parallel model; its traffic is unknown here."""
    found = facts(stage, lambda rank, look: [parameter(STEP * look, f"{look} of {rank}")], wrapper=None)
    assert apart(found) == [True] * 3
    assert judge().verdict(found).findings == ()


def test_a_parameter_that_is_not_a_number(stage: Stage) -> None:
    def rule(rank: int, look: int) -> list[Parameter]:
        return [parameter(STEP * look, f"state {look}", nonfinite="nan" if rank else "")]

    verdict = judge().verdict(facts(stage, rule))
    assert verdict.status == "healthy"
    assert verdict.note.startswith("a step every 1 s; ranks 1-2: parameter model.weight holds nan")
