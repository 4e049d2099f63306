"""Parts of a verdict as text, for every renderer: job, links, files, gaps in the evidence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hangdoc.evidence import Unseen
from hangdoc.formatting import size
from hangdoc.render.rank_groups import hosts_text, name
from hangdoc.render.sanitize import clean
from hangdoc.verdict import Job, Link

if TYPE_CHECKING:
    from hangdoc.incident.incident import File

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def job_name(id: str) -> str:
    """The job's id; for a UUID, which torchrun generates if no id is given, the first block."""
    shown = clean(id)
    return shown[:8] if _UUID.fullmatch(shown) else shown


def job_text(job: Job) -> str:
    """`3 ranks on 1 host`, or `2 of 3 ranks on 1 host` if hangdoc did not see all of them."""
    seen = len(job.ranks)
    count = f"{seen} of {job.world_size}" if job.world_size and job.world_size > seen else str(seen)
    hosts = len(job.hosts)
    return f"{count} rank{'' if count == '1' else 's'} on {hosts} host{'' if hosts == 1 else 's'}"


def link_texts(links: Iterable[Link]) -> list[tuple[str, str]]:
    """Both ends of each link, and the interface."""

    def end(rank: int | None, address: str) -> str:
        return f"rank {rank} ({clean(address)})" if rank is not None else clean(address)

    return [
        (
            f"{end(link.from_rank, link.local)} -> {end(link.to_rank, link.remote)}",
            f"on {clean(link.interface)}" if link.interface else "",
        )
        for link in links
    ]


def unseen_texts(unseen: Iterable[Unseen]) -> list[str]:
    """`stacks of ranks 3-5: ptrace refused; ...`, each reason once."""
    gaps: dict[tuple[str, str], list[Unseen]] = {}
    for one in unseen:
        gaps.setdefault((one.probe, _reason(one)), []).append(one)
    texts = []
    for (probe, why), ones in gaps.items():
        known = [one for one in ones if one.rank is not None or one.pid is not None]
        hosts = {one.host for one in ones if one.host}
        source = name((one.rank, one.pid) for one in known) if known else hosts_text(hosts) if hosts else ""
        texts.append(f"{clean(probe)}{f' of {source}' if source else ''}: {clean(why)}")
    return texts


def _reason(one: Unseen) -> str:
    """The reason without the PID, so that equal reasons of several ranks merge."""
    if one.pid is None:
        return one.why
    return re.sub(rf"\bPID {one.pid}\b", "the process", one.why).replace(f"/proc/{one.pid}/", "/proc/PID/")


def files_text(files: Sequence[File]) -> str:
    """`3 files, 12 MiB: 2 Flight Recorder dumps, 1 training log`; empty if no file was read."""
    if not files:
        return ""
    kinds = Counter(clean(file.kind) for file in files)
    sizes = [file.size for file in files if file.size is not None]
    whole = f", {size(sum(sizes))}" if len(sizes) == len(files) else ""
    counts = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in kinds.most_common())
    return f"{len(files)} file{'s' * (len(files) != 1)}{whole}: {counts}"


def file_text(file: File) -> str:
    """`training log, 12 MiB, sha256 0123456789abcdef`."""
    hashed = f"sha256 {clean(file.sha256)}" if file.sha256 else ""
    return ", ".join(part for part in (clean(file.kind), size(file.size) * (file.size is not None), hashed) if part)
