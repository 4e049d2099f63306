"""No false positives: nothing is masked in our recordings, samples, scripts and runbooks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hangdoc.evidence import ProcessGroup, Variable
from hangdoc.recording.recorder import read
from hangdoc.redaction.records import Mask
from hangdoc.redaction.text import HIDDEN, redact, redact_source, redact_text, redact_words
from tests.support.paths import ROOT

RECORDINGS = sorted([*ROOT.glob("playbooks/*/capture.jsonl.zst"), *ROOT.glob("tests/data/recordings/*.jsonl.zst")])
SCRIPTS = ("playbooks/*/*.py", "tests/live/jobs/*/*.py", "tests/data/postmortem/kept/*/*.py", "hangdoc/**/*.py")
TEXTS = ("playbooks/*/*.md", "playbooks/*/*.yaml", "hangdoc/**/*.yaml", "tests/data/postmortem/*.yaml", "*.md")
BINARY = "flight_recorder"  # samples of pickles

COMMIT = "3a1f9c0b7de84512f6a0c9d8e7b6a5f4c3d2e1f0"
DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
HONEST = (
    f"/sys/fs/cgroup/system.slice/docker-{DIGEST}.scope/cpu.max",
    f"/var/lib/docker/overlay2/{DIGEST[:64]}/merged/train.py",
    f"/root/.cache/huggingface/hub/models--meta-llama--Llama-2-7b/snapshots/{COMMIT}/model-00001-of-00002.safetensors",
    f"/root/.cache/huggingface/hub/models--gpt2/blobs/{DIGEST}",
    f"/tmp/torchinductor_root/ab/c{COMMIT[:30]}xyz.py",
    f"git commit {COMMIT}",
    f"image registry.example.com/train@sha256:{DIGEST}",
    "job 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
    "/kubepods.slice/kubepods-pod3f2504e0_4f89_11d3_9a0c_0305e82c3301.slice",
    "NCCL INFO comm 0x55d0c8a7f2b0 rank 3 nranks 8 cudaDev 3 busId 1b000 commId 0xa1b2c3d4e5f60718 - Init START",
    "[fe80::42:acff:fe11:2%eth0]:29500 -> 10.0.0.12:45678",
    "tcp://10.0.0.1:29500",
    "node[01-16].cluster.example.com",
    "Tensor([8, 64, 1024], bfloat16, cuda)",
    "tensor(float32)[16, 3, 224, 224]",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_ZN4c10d16ProcessGroupGloo9allreduceERSt6vectorIN2at6TensorESaIS3_EERKNS_16AllreduceOptionsE",
    "N4gloo9transport3tcp13UnboundBufferE",
    "c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l>>>)",
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner",
    "/usr/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py:423",
    "checkpoints/Run3_LlamaBig_BS512/epoch12/optimizer_rank00007.pt",
    "s3://bucket/Data2/shards/train-00017-of-01024.parquet",
    "max_tokens=4096 tokens/s: 35.1k num_tokens: 1.2M tokenizer=gpt2 pad_token_id=0",
    "KeyError: 'token'",
    "FATAL: password authentication failed for user",
    "secret volume could not be mounted",
    "store->get('default_pg/0//cpu//0/0') key: 0:1:2",
    "2026-01-01 10:00:00,123 rank3 [INFO] step 4821 loss 2.3145 lr 1.00e-04",
    "https://example.com:8443/a/@scope/b?page=2&size=10",
    "git@github.com:org/repo.git",
    "pid 4711 (/usr/sbin/sshd -D -p 22)",
    "python -m torch.distributed.run --nproc-per-node 8 --rdzv-endpoint=n1:29500 train.py --seed 1 --max-tokens 512",
    "docker run -p 8080:80 --name x image:1.2",
)
LINES = (
    "for key, value in batch.items():",
    "token = tokenizer.encode(text)",
    "key_states = self.k_proj(hidden_states).view(bsz, q_len, self.num_heads)",
    "keys = sorted(state_dict)",
    "attn = scaled_dot_product_attention(query, key, value, is_causal=True)",
    'password = os.environ["PASSWORD"]',
    'login(token=os.environ["HF_TOKEN"])',
    "dist.all_reduce(auth, group=tokens_group)",
    'loss = model(batch["input_ids"], labels=batch["labels"])["loss"]',
)


def test_there_are_recordings() -> None:
    assert len(RECORDINGS) > 80


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_in_a_recording_is_masked(path: Path) -> None:
    assert all(Mask().of(shot) is shot for recording in read(path) for shot in recording.snapshots)


@pytest.mark.parametrize("line", [pytest.param(line, id=str(n)) for n, line in enumerate(LINES)])
def test_a_line_of_source_is_kept(line: str) -> None:
    assert redact_source(line) == line


@pytest.mark.parametrize("text", [pytest.param(text, id=str(n)) for n, text in enumerate(HONEST)])
def test_an_honest_text_is_kept(text: str) -> None:
    assert redact_text(text) == text
    assert redact_words(text.split(" ")) == tuple(text.split(" "))


# Their lines name secrets, as lines that hold one do.
ABOUT_SECRETS = {ROOT / "hangdoc" / part for part in ("redaction", "alerts", "daemon/config.py")}


def lines_of(*patterns: str) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and path not in ABOUT_SECRETS and path.parent not in ABOUT_SECRETS:
                yield from ((path.name, line) for line in path.read_text(errors="replace").splitlines())


def test_scripts_are_kept() -> None:
    shown = [(name, line) for name, line in lines_of(*SCRIPTS) if redact_source(line) != line]
    assert shown == []


def test_runbooks_and_logs_are_kept() -> None:
    shown = [(name, line) for name, line in lines_of(*TEXTS) if redact_text(line) != line]
    for path in sorted(ROOT.glob("tests/data/samples/**/*")):
        if path.is_file() and BINARY not in path.parts:
            text = path.read_text(errors="replace").splitlines()
            shown += [(path.name, line) for line in text if redact_text(line) != line]
    assert shown == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("key", "Tensor([8, 64], float32, cpu)"),
        ("keys", "list of 12"),
        ("key", '"model.layers.0.self_attn.q_proj.weight"'),
        ("tokens", "[101, 2003, 102]"),
        ("token_type", '"bearer"'),
        ("credentials_file", '"/etc/x.json"'),
        ("pass_count", "3"),
        ("attention_mask", "Tensor([8, 64], int64, cpu)"),
        ("compass", '"north"'),
        ("NCCL_IB_PKEY", "0"),
        ("PWD", "/home/me/job"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-x/agent.1"),
    ],
)
def test_a_value_that_is_no_secret_is_kept(name: str, text: str) -> None:
    assert redact(name, text) == text


def test_masking_keeps_equal_texts_equal() -> None:
    """Names of process groups are SHA-1 hashes now and then; and of a password at least that two are the same."""
    groups = tuple(ProcessGroup(1, hashed, (0, 1)) for hashed in (COMMIT, DIGEST[:40], "0"))
    assert Mask().of(groups) is groups
    same = [Mask().of(Variable("x", text)).text for text in ('"hf_' + "a1" * 17 + '"', '"hf_' + "a1" * 17 + '"')]
    assert same[0] == same[1]
    assert HIDDEN in same[0]


def test_samples_are_there() -> None:
    assert len(list(ROOT.glob("tests/data/samples/**/*"))) > 40
