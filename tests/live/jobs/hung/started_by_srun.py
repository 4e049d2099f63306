"""A training script as srun starts it, without torchrun: the ranks come from Slurm's variables.

srun -N2 python started_by_srun.py SCRIPT [ARGUMENT...]
"""

import os
import runpy
import sys

os.environ["RANK"] = os.environ["SLURM_PROCID"]
os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
os.environ.setdefault("MASTER_ADDR", os.environ["SLURM_LAUNCH_NODE_IPADDR"])
os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ["SLURM_JOB_ID"]) % 10000))

del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
