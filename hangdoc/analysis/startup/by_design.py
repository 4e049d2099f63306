"""Settings that differ between ranks by design, each with the reason: they explain no stall and are not shown.

A pattern matches a whole name: of a variable, an option or a configuration value, without its path, in lower case,
with `_` for `-` and `.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

BY_DESIGN: tuple[tuple[str, str], ...] = (
    (r"\w*rank\w*|\w*_?(?:procid|localid|nodeid|node_id|process_index|process_id|worker_id)", "the number of a rank"),
    (r"(?:\w+_)?(?:id|uuid|uid|pid|idx|index)", "identifies a process, a run or a part of the work"),
    (r"is_(?:main|master|chief|coordinator|world|local)\w*|(?:\w+_)?(?:chief|coordinator)", "the role of rank 0"),
    (r"(?:\w+_)?role(?:_\w+)?", "the role of a rank"),
    (r"(?!master_port$)(?:\w+_)?ports?", "each process listens on its own port"),
    (r"(?:\w+_)?(?:host|hosts|hostname|node|node_name|addr|address|ip|interface|ifname)", "the host or its address"),
    (r"(?:\w+_)?seeds?(?:_\w+)?|pythonhashseed", "ranks draw different random numbers"),
    (r"(?:\w+_)?(?:device|devices|device_map|gpu|gpus|gpu_ids|visible_devices|cuda)", "each rank has its own device"),
    (r"slurm_(?:step_)?gpus\w*|slurm_cpu_bind\w*|slurm_mem_bind\w*", "Slurm binds each task to its own resources"),
    (r"slurm_(?:job_)?cpus\w*|slurm_tasks_per_node|slurm_launch_node_ipaddr", "hosts have different numbers of cores"),
    (r"(?:ompi|pmix|prte|pmi|hydra|mpir|mpi|mv2)_(?!mca_(?:btl|pml|mtl|coll)_)\w+", "MPI numbers its processes"),
    (r"torchelastic_\w+|group_\w+|rdzv_\w+", "the launcher's own bookkeeping on each host"),
    (r"(?:gomp|kmp)_\w*affinity\w*|omp_places|omp_proc_bind|numa\w*", "each process is bound to its own cores"),
    (r"(?:\w+_)?(?:log|logs|log_dir|logdir|logging\w*|log_level|verbose|quiet|debug|rich|progress\w*|disable_tqdm)",
     "only some ranks log"),
    (r"(?:\w+_)?(?:wandb|tensorboard|profile|profiler|trace)(?:_\w+)?", "only some ranks report or are profiled"),
    (r"(?:\w+_)?(?:out|output|output_dir|tmp|temp|tmpdir|cache|cache_dir|scratch)(?:_(?:dir|path|file|root))?",
     "each rank or host writes to its own folder"),
    (r"(?:\w+_)?(?:shard|shards|partition|split|stage|part)(?:_\w+)?", "each rank has its own part of the work"),
    (r"(?:\w+_)?(?:time|timestamp|date|started|elapsed|now)", "a time of day"),
)  # fmt: skip


@lru_cache(maxsize=4096)
def differs_by_design(name: str) -> str | None:
    """Why the setting differs between ranks by design; None: it does not."""
    plain = re.sub(r"[-.]", "_", name.rpartition(".")[2].lstrip("-")).lower()
    return next((why for pattern, why in _compiled() if pattern.fullmatch(plain)), None)


@lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[re.Pattern[str], str], ...]:
    def each() -> Iterator[tuple[re.Pattern[str], str]]:
        for pattern, why in BY_DESIGN:
            yield re.compile(pattern), why

    return tuple(each())
