"""The dtype a rank computes in, and native bfloat16 support."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from hangdoc.analysis.compute.precision import ANALYSIS, PrecisionFacts
from hangdoc.evidence import Environ, Host, Variable
from hangdoc.evidence.software import Types
from tests.support.synthetic_evidence import LIB, At, Stage, tensor

SCRIPT = """\
def train(x):
    loss = model(x).sum()
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(SCRIPT, tmp_path_factory.mktemp("stage"))


def facts(stage: Stage, at: At, flags: frozenset[str] | None = frozenset({"avx2"})) -> PrecisionFacts:
    """Facts of one rank on a CPU with these flags."""
    case = stage.facts([at]).case
    host = Host("here", None, "6", 2, "a CPU", flags)
    case.history = [replace(shot, records={"host": host}) for shot in case.history]
    (found,) = ANALYSIS.derive(case)[0].values()
    return found


def at(*variables: Variable, environ: Mapping[str, str] | None = None) -> At:
    records = {"environ": Environ(environ or {}), "types": Types(("job.py:9: dtype = torch.bfloat16",))}
    return At([("train", 2)], variables={"train": variables}, state="R", records=records)


HALF = tensor("x", 8, 4, dtype="bfloat16")


def test_bf16_tensors_and_the_line_that_chose_the_dtype(stage: Stage) -> None:
    found = facts(stage, at(HALF, tensor("w", 4, dtype="bfloat16")))
    assert (found.dtype, found.bf16, found.bf16_units) == ("bfloat16", True, False)
    assert found.bf16_where == "x in train (job.py:2)"
    assert found.bf16_line == "job.py:9: dtype = torch.bfloat16"
    assert found.kernels == "train (job.py:2)"


@pytest.mark.parametrize(
    ("flags", "environ", "units", "limit"),
    [
        (frozenset({"avx512f", "avx512_bf16"}), {}, True, None),
        (frozenset({"amx_bf16"}), {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, True, None),
        (frozenset({"avx512_bf16"}), {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False, "ONEDNN_MAX_CPU_ISA=AVX2"),
        (frozenset({"avx512_bf16"}), {"DNNL_MAX_CPU_ISA": "AVX512_CORE"}, False, "DNNL_MAX_CPU_ISA=AVX512_CORE"),
        (frozenset({"avx512_bf16"}), {"ATEN_CPU_CAPABILITY": "avx2"}, True, None),  # measured: no slower
        (frozenset({"asimd", "bf16"}), {}, True, None),
        (frozenset({"avx2", "fma"}), {}, False, None),
        (None, {}, None, None),
    ],
)
def test_units(
    stage: Stage, flags: frozenset[str] | None, environ: dict[str, str], units: bool | None, limit: str | None
) -> None:
    found = facts(stage, at(HALF, environ=environ), flags)
    assert (found.bf16_units, found.bf16_limit) == (units, limit)


def test_other_dtypes_are_not_bf16(stage: Stage) -> None:
    found = facts(stage, at(tensor("x", 8), tensor("i", 8, dtype="int64")))
    assert (found.dtype, found.bf16) == ("float32", False)


def test_tensors_only_communicated_in_bf16_do_not_count(stage: Stage) -> None:
    """DDP's compression hooks."""
    hook = [("bf16_compress_hook", f"{LIB}/distributed/algorithms/ddp_comm_hooks/default_hooks.py")]
    sent = {"bf16_compress_hook": [HALF], "train": [tensor("x", 8)]}
    assert facts(stage, At([("train", 2)], hook, variables=sent)).bf16 is False


def test_unknown_without_tensors(stage: Stage) -> None:
    assert facts(stage, At([("train", 2)])).bf16 is None
