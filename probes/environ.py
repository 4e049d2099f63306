"""Probe `environ`: the environment variables that configure a training job, as each rank was started.

/proc/PID/environ shows the environment at exec, without later changes.
"""

from __future__ import annotations

import re

from hangdoc.evidence import Environ, Unseen
from hangdoc.redaction.text import redact
from hangdoc.system import procfs
from hangdoc.system.permissions import remedy
from probes import Observation, Request, Tier

_LONGEST = 400  # characters of a value

# Recorded by name. No other variable leaves this probe, except below.
_ALLOWED = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_RANK|ROLE_WORLD_SIZE|ROLE_NAME"
    r"|MASTER_ADDR|MASTER_PORT|NNODES|NPROC_PER_NODE|RDZV_\w+|TORCHELASTIC_\w+"
    r"|(?:GLOO|NCCL|RCCL|TORCH|PYTORCH|TORCHDYNAMO|TORCHINDUCTOR|TRITON|INDUCTOR|C10D|ATEN|ONEDNN|DNNL|MKL|OMP|KMP|GOMP|OPENBLAS)_\w+"
    r"|(?:CUDA|HIP|ROCR|NVIDIA_VISIBLE|XLA|ACCELERATE|DEEPSPEED|FSDP|PL|LIGHTNING|HOROVOD|CCL|FI|UCX|PSM3)_\w+"
    r"|(?:OMPI_COMM_WORLD|OMPI_MCA|PRTE_MCA|PMIX_MCA|PMI|MPI|MPICH|HYDRA|I_MPI|MV2|MPIR)_\w+|PMIX_RANK|PMIX_NAMESPACE"
    r"|SLURM_(?:JOB_?ID|JOB_NAME|JOB_NODELIST|JOB_NUM_NODES|JOB_CPUS_PER_NODE|STEP_?ID|STEP_NODELIST|STEP_NUM_TASKS|STEP_GPUS|NODELIST"
    r"|NODEID|NNODES|NTASKS|NTASKS_PER_NODE|NPROCS|PROCID|LOCALID|TASKS_PER_NODE|CPUS_PER_TASK|CPUS_ON_NODE|CPU_BIND\w*|MEM_\w+"
    r"|GPUS\w*|RESTART_COUNT|LAUNCH_NODE_IPADDR)"
    r"|HOSTNAME|PYTHONUNBUFFERED|PYTHONFAULTHANDLER|PYTHONHASHSEED|PYTHONPATH|LD_PRELOAD|LD_LIBRARY_PATH|MALLOC_\w+"
    r"|TOKENIZERS_PARALLELISM|HF_(?:HUB|DATASETS|EVALUATE)_OFFLINE|TRANSFORMERS_OFFLINE|HF_HOME|HF_DATASETS_CACHE|TMPDIR|CONDA_DEFAULT_ENV"
    r"|VIRTUAL_ENV|GOMAXPROCS|NUMEXPR_\w+|TF_CONFIG|JOB_COMPLETION_INDEX"
)
# Data locations: recorded only if the value is a path.
_DATA = re.compile(
    r"(?:\w+_)?(?:DATA|DATASETS?|CORPUS|CORPORA|SHARDS?|TRAIN|TRAINING|INPUTS?|STORAGE|SCRATCH)"
    r"(?:DIR|DIRECTORY|ROOT|PATH|HOME|FOLDER|PREFIX|FILES?|LIST|URL)?(?:_\w+)?"
)
# Compute precision: recorded only if the value is a short word.
_TYPE = re.compile(r"(?:\w+_)?(?:PRECISION|DTYPE|BF16|FP16|TF32|AMP)(?:_\w+)?")
_WORD = re.compile(r"[\w.+-]{0,20}")
_PATH = re.compile(r"(?:/|~|\.{1,2}/|\w+://)[\w./~:+=, -]*")
_SECRET = re.compile(r"TOKEN(?!IZER)|KEY|SECRET|PASSW|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|CERT", re.IGNORECASE)


class EnvironProbe:
    name = "environ"
    scope = "rank"
    tier = Tier.LOOK
    needs = "nothing"
    record = Environ
    order = 10
    steady = True

    def observe(self, request: Request) -> Observation:
        records: dict[int, Environ] = {}
        unseen: list[Unseen] = []
        for target in request.targets:
            variables = procfs.environ(target.pid)
            if variables is not None:
                records[target.pid] = Environ(allowed(variables))
            else:
                why = f"no permission to read the environment of PID {target.pid}; {remedy(target.pid)}"
                unseen.append(Unseen(self.name, why, target.rank, target.pid, target.host))
        return Observation(records, unseen=tuple(unseen))


def allowed(variables: dict[str, str]) -> dict[str, str]:
    """The variables that may be shown, by name; values are redacted, then shortened."""
    return {
        name: shorten(redact(name, value))
        for name, value in sorted(variables.items())
        if _harmless(name, value) and not _SECRET.search(name)
    }


def _harmless(name: str, value: str) -> bool:
    if _ALLOWED.fullmatch(name):
        return True
    return bool(
        (_DATA.fullmatch(name) and _PATH.fullmatch(value)) or (_TYPE.fullmatch(name) and _WORD.fullmatch(value))
    )


def shorten(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 3] + "..."


PROBE = EnvironProbe()
