"""What the tests expect of a reproducer, and its variants: other jobs that fail in the same way (`tests/expected/`).

It stands apart from the playbooks: there, nothing knows the script by which it is proved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from hangdoc import demo
from hangdoc.envelope import Id, Pattern, Reproducer, Start

FOLDER = Path(__file__).parent / "expected"


class Variant(Start):
    """What it does not say is as in the reproducer itself."""

    name: Id


class Expectations(BaseModel):
    """One file of `tests/expected`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    evidence: tuple[Pattern, ...]
    variants: tuple[Variant, ...] = ()


def of(first: Reproducer, expected: Expectations) -> dict[str, Reproducer]:
    """The reproducer, by the name "", and its variants by theirs."""
    itself = first.model_copy(update={"expect": first.expect.model_copy(update={"evidence": expected.evidence})})
    return {"": itself, **{variant.name: _told(itself, variant) for variant in expected.variants}}


def _told(first: Reproducer, variant: Variant) -> Reproducer:
    return first.model_copy(update={key: getattr(variant, key) for key in variant.model_fields_set - {"name"}})


def variants(id: str) -> list[demo.Broken]:
    """The reproducer of a playbook and then its variants, with all that is expected of them."""
    job = demo.broken(id)
    expected = Expectations.model_validate(yaml.safe_load((FOLDER / f"{id}.yaml").read_text(encoding="utf-8")))
    return [
        replace(
            job,
            script=job.script.parent / told.script,
            told=told,
            status=told.expect.status or job.status,
            variant=name,
        )
        for name, told in of(job.told, expected).items()
    ]


def broken(id: str) -> demo.Broken:
    """The reproducer alone."""
    return variants(id)[0]
