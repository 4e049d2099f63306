"""Shape, dtype and device of torch tensors, read from memory; nothing runs in the process.

c10::TensorImpl has no published layout, so each object is checked: its implementation points back to it
(`pyobj_slot_`), `sizes_and_strides_` follows, and the product of the sizes equals the stored number of elements.
None: a check failed.
Source: torch 2.13, c10/core/TensorImpl.h, impl/SizesAndStrides.h, ScalarType.h, DeviceType.h.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from hangdoc.evidence import Tensor
from hangdoc.introspect.memory import Memory
from hangdoc.introspect.objects import Seen

DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128",
    "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8",
    "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16", "uint32", "uint64",
    "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2", "int3", "int4", "int5", "int6",
    "int7", "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip
DEVICES = (
    "cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan", "metal", "xpu", "mps",
    "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone",
)  # fmt: skip

_BASES = frozenset({"torch._C.TensorBase", "torch._C._TensorBase"})
_IMPL_BYTES = 192
_BACK = range(32, 80, 8)  # possible offsets of the pointer back to the Python object: 48 in 2.13, 56 before
_INLINE = 5  # sizes stored inline
_CUSTOM_SIZES = 2  # TensorImpl::SizesStridesPolicy
_MAX = 64  # dimensions a tensor can have

# torch::autograd::AutogradMeta: name_ (libstdc++: a short text is in the object), grad_, grad_fn_, grad_accumulator_.
# grad_fn_, which is null in a parameter, takes one word in 2.13, two before.
_META_AFTER = (24, 32)  # offset of autograd_meta_ in TensorImpl; the second with older refcounts
_META_BYTES, _NAME, _SHORT_NAME, _GRADIENT, _ACCUMULATOR = 80, 8, 24, 40, (56, 64)


def read_tensors(memory: Memory, seen: Mapping[int, Seen]) -> dict[int, Tensor]:
    """The tensors among the objects of one process, in a few system calls. Raises Unreadable.

    The process keeps running, so each tensor is read twice and left out if it changed.
    """
    addresses = [a for a, item in seen.items() if not _BASES.isdisjoint((item.type.name, *item.type.bases))]
    first, again = _read(memory, addresses), _read(memory, addresses)
    return {address: tensor for address, tensor in first.items() if again.get(address) == tensor}


def have_gradients(memory: Memory, addresses: Sequence[int], undefined: int) -> dict[int, bool]:
    """By parameter: does it have a gradient? Those that never took part in autograd are left out. Raises Unreadable.

    `undefined` is the address of `c10::UndefinedTensorImpl::_singleton`, which stands for "no tensor".
    """
    heads = memory.read_many([(address + 16, 16) for address in addresses])
    pointers = [struct.unpack("<2Q", head) if head is not None else () for head in heads]
    bodies = iter(memory.read_many([(impl, _IMPL_BYTES) for both in pointers for impl in both]))
    found: dict[int, tuple[int, bytes]] = {}  # by parameter: its implementation's virtual table, and its body
    for address, both in zip(addresses, pointers, strict=True):
        for body in [next(bodies) for _ in both]:
            if body is not None and _locate(body, address) is not None:
                found.setdefault(address, (int.from_bytes(body[:8], "little"), body))
    metas = [(a, struct.unpack_from("<Q", body, at)[0]) for a, (_, body) in found.items() for at in _META_AFTER]
    read = memory.read_many([(meta, _META_BYTES) for _, meta in metas])
    gradients = {
        address: struct.unpack_from("<Q", body, _GRADIENT)[0]
        for (address, meta), body in zip(metas, read, strict=True)
        if body is not None
        and struct.unpack_from("<Q", body, _NAME)[0] == meta + _SHORT_NAME
        and any(struct.unpack_from("<Q", body, at)[0] for at in _ACCUMULATOR)
    }
    tables = memory.read_many([(gradient, 8) for gradient in gradients.values()])
    return {
        address: gradient != undefined
        for (address, gradient), table in zip(gradients.items(), tables, strict=True)
        if gradient == undefined or (table is not None and int.from_bytes(table, "little") == found[address][0])
    }


def _read(memory: Memory, addresses: Sequence[int]) -> dict[int, Tensor]:
    heads = memory.read_many([(address, 32) for address in addresses])
    found: dict[int, Tensor] = {}
    # The object holds the address of its implementation at 16; at 24 behind a flag in older builds (MaybeOwned).
    for slot in (16, 24):
        found |= _follow(
            memory,
            {
                address: int.from_bytes(head[slot : slot + 8], "little")
                for address, head in zip(addresses, heads, strict=True)
                if head is not None and address not in found
            },
        )
    return found


def _follow(memory: Memory, pointers: Mapping[int, int]) -> dict[int, Tensor]:
    """Tensors by object address, from the addresses of their implementations."""
    bodies = memory.read_many([(impl, _IMPL_BYTES) for impl in pointers.values()])
    located = {
        address: (body, start)
        for address, body in zip(pointers, bodies, strict=True)
        if body is not None and (start := _locate(body, address)) is not None
    }
    far = {}  # sizes stored out of line: address and bytes
    for address, (body, start) in located.items():
        count, first = struct.unpack_from("<2Q", body, start)
        if _INLINE < count <= _MAX:
            far[address] = (first, 8 * count)
    sizes = dict(zip(far, memory.read_many(list(far.values())), strict=True))
    found = {address: _tensor(body, start, sizes.get(address)) for address, (body, start) in located.items()}
    return {address: tensor for address, tensor in found.items() if tensor is not None}


def _locate(body: bytes, address: int) -> int | None:
    """Offset of `sizes_and_strides_`: after the pointer back to the object (low bit: a tag in older builds)."""
    for offset in _BACK:
        if struct.unpack_from("<Q", body, offset)[0] & ~1 == address:
            return offset + 8
    return None


def _tensor(body: bytes, start: int, far: bytes | None) -> Tensor | None:
    """The record; None: a check failed."""
    (count,) = struct.unpack_from("<Q", body, start)
    if count <= _INLINE:
        shape = struct.unpack_from(f"<{count}q", body, start + 8)
    elif far is not None:
        shape = struct.unpack(f"<{count}q", far)
    else:
        return None
    # After the sizes and strides: storage offset, number of elements, scalar type, optional device.
    tail = start + 8 + 16 * _INLINE
    offset, elements, dtype, device, _, engaged, _, flags = struct.unpack_from("<2qH2b?2B", body, tail)
    if flags >> 2 & 3 == _CUSTOM_SIZES:  # nested and symbolic tensors store sizes elsewhere
        return None
    if min(shape, default=0) < 0 or offset < 0 or math.prod(shape) != elements:
        return None
    if dtype >= len(DTYPES) or not engaged or not 0 <= device < len(DEVICES):
        return None
    return Tensor(shape, DTYPES[dtype], DEVICES[device])
