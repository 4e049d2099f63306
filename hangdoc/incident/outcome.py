"""What became of a job whose ranks have ended, from how they ended."""

from __future__ import annotations

from collections.abc import Collection

from hangdoc.analysis.facts import Facts, RankFacts
from hangdoc.formatting import capitalized, name_processes
from hangdoc.incident.record import Outcome

LAUNCHERS = {"torchrun": "torchrun", "mpi": "mpirun", "slurm": "srun"}


def outcome_of(facts: Facts | None, at: str, stalled: bool = False) -> Outcome:
    """The outcome of a job that has ended; without facts, it was lost sight of. `stalled`: it stood still before."""
    if facts is None:
        return Outcome("lost", "hangdoc lost sight of the job before it ended.", at)
    kinds = {rank.exit.kind for rank in facts.ranks}
    if kinds == {"finished"}:
        return Outcome("ended", "Every rank exited with code 0.", at)
    if any(rank.exit.oom for rank in facts.ranks):
        victims = [rank for rank in facts.ranks if rank.exit.oom]
        return Outcome("killed", f"The kernel's out-of-memory killer ended {name_processes(victims)}.", at)
    gave_up = _of_kinds(facts, {"failed", "aborted", "crashed"})
    if gave_up:
        return Outcome("failed", _failure_text(gave_up, _of_kinds(facts, {"told", "killed"}), facts, stalled), at)
    ended = _of_kinds(facts, {"told", "killed"})
    if not ended:
        return Outcome("lost", "The ranks have ended; hangdoc could not see how.", at)
    # A launcher asks its ranks to end (SIGTERM) before it kills them; whoever only kills is somebody else.
    if launcher := _launcher(facts) if "told" in kinds else None:
        return Outcome("killed_by_launcher", f"{launcher} ended {name_processes(ended)}: {_how(ended)}.", at)
    whose = "an operator, the scheduler or a memory guard"
    return Outcome("killed", f"{capitalized(name_processes(ended))} {_was(ended)} ended by {_how(ended)}: {whose}.", at)


def _failure_text(gave_up: Collection[RankFacts], ended: Collection[RankFacts], facts: Facts, stalled: bool) -> str:
    """Ranks that gave up, and why they may have; then those that the launcher ended."""
    raised = all(rank.exit.kind == "failed" and (stalled or rank.exit.waited) for rank in gave_up)
    why = ", as after a collective timeout or a connection that a peer closed" if raised else ""
    text = f"{capitalized(name_processes(gave_up))} gave up: {_how(gave_up)}{why}."
    if ended:
        who = _launcher(facts)
        by = f"{who} then ended" if who else "Then a signal ended"
        text += f" {by} {name_processes(ended)}."
    return text


def _of_kinds(facts: Facts, kinds: Collection[str]) -> list[RankFacts]:
    return [rank for rank in facts.ranks if rank.exit.kind in kinds]


def _how(ranks: Collection[RankFacts]) -> str:
    return ", ".join(dict.fromkeys(rank.exit.text for rank in ranks if rank.exit.text)) or "an unknown cause"


def _was(ranks: Collection[RankFacts]) -> str:
    return "was" if len(ranks) == 1 else "were"


def _launcher(facts: Facts) -> str | None:
    """The name of the launcher that made the ranks; None: they were started by hand."""
    targets = (rank.target for rank in facts.case.ranks.values())
    return next((LAUNCHERS[one.launcher] for one in targets if one.launcher in LAUNCHERS and one.launcher_pid), None)
