"""Shape, dtype, device and contents of torch tensors, read from memory; nothing runs in the process.

c10::TensorImpl has no published layout, so each object is checked: its implementation points back to it
(`pyobj_slot_`), `sizes_and_strides_` follows, and the product of the sizes equals the stored number of elements.
None: a check failed.
Source: torch 2.13, c10/core/TensorImpl.h, impl/SizesAndStrides.h, ScalarType.h, DeviceType.h.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

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
_META_HEAD_BYTES, _ACCUMULATOR = 80, (56, 64)
# Contents: only in the layout of torch 2.13, where the pointer back is at 48. In c10::TensorImpl: storage_,
# autograd_meta_, version_counter_. In c10::StorageImpl: data_ptr_, size_bytes_; in VersionCounter: version_. In
# torch::autograd::AutogradMeta: name_ (libstdc++: an empty text points behind its own length), grad_, requires_grad_.
_STORAGE, _META, _COUNTER, _CHECKED_BACK = 16, 24, 40, 48
_DATA, _DATA_BYTES, _STORAGE_HEAD = 16, 48, 56
_VERSION = 16
_NAME, _NAME_BUFFER, _GRAD, _REQUIRES_GRAD, _META_BYTES = 8, 24, 40, 128, 136
FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes of an element
_EXPONENTS = {"float16": ("H", 0x7C00), "bfloat16": ("H", 0x7F80), "float32": ("I", 0x7F800000)}
_DOUBLE = ("Q", 0x7FF << 52)
_SCALARS = 16  # single elements of a process whose values are read


def read_tensors(memory: Memory, seen: Mapping[int, Seen]) -> dict[int, Tensor]:
    """The tensors among the objects of one process, in a few system calls. Raises Unreadable.

    The process keeps running, so each tensor is read twice and left out if it changed.
    """
    addresses = [a for a, item in seen.items() if not _BASES.isdisjoint((item.type.name, *item.type.bases))]
    first, again = _read(memory, addresses), _read(memory, addresses)
    tensors = {address: tensor for address, tensor in first.items() if again.get(address) == tensor}
    single = [a for a, t in tensors.items() if math.prod(t.shape) == 1 and t.dtype in FLOATS and t.device == "cpu"]
    values = _scalars(memory, single[:_SCALARS])
    return {a: structs.replace(t, nonfinite=values[a]) if values.get(a) else t for a, t in tensors.items()}


def nonfinite(data: bytes, dtype: str) -> str:
    """nan or inf if an element is: all bits of its exponent are set, and for inf no other except the sign."""
    code, exponent = _EXPONENTS.get(dtype, _DOUBLE)
    words = struct.unpack(f"<{len(data) // FLOATS[dtype]}{code}", data)
    fraction = (exponent & -exponent) - 1
    special = [word & fraction for word in words if word & exponent == exponent]
    return "" if not special else "nan" if any(special) else "inf"


def _scalars(memory: Memory, addresses: Sequence[int]) -> dict[int, str]:
    """What `nonfinite` says of tensors with one element; those that moved meanwhile are left out. Raises Unreadable."""
    if not addresses:
        return {}
    found = {a: content for a, content in locate(memory, addresses).items() if content.data}
    values = memory.read_many([(content.data, FLOATS[content.tensor.dtype]) for content in found.values()])
    again = locate(memory, found)
    return {
        address: nonfinite(value, content.tensor.dtype)
        for (address, content), value in zip(found.items(), values, strict=True)
        if value is not None and again.get(address) == content
    }


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
    read = memory.read_many([(meta, _META_HEAD_BYTES) for _, meta in metas])
    gradients = {
        address: struct.unpack_from("<Q", body, _GRAD)[0]
        for (address, meta), body in zip(metas, read, strict=True)
        if body is not None
        and struct.unpack_from("<Q", body, _NAME)[0] == meta + _NAME_BUFFER
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


@dataclass(frozen=True, slots=True)
class Content:
    """Where a tensor of the CPU keeps its elements."""

    tensor: Tensor
    data: int  # address of the first element; 0: not in the memory of the process, as on a GPU
    size: int  # bytes from there that belong to it
    version: int  # address of its 32-bit version
    gradient: int = 0  # address of its gradient's c10::TensorImpl; 0: none
    trainable: bool = False  # requires_grad


def locate(memory: Memory, addresses: Iterable[int]) -> dict[int, Content]:
    """The contents of floating-point tensors by object; those with another layout are left out. Raises Unreadable."""
    wanted = list(dict.fromkeys(addresses))
    heads = memory.read_many([(address + 16, 8) for address in wanted])
    impls = {a: int.from_bytes(head, "little") for a, head in zip(wanted, heads, strict=True) if head is not None}
    bodies = dict(zip(impls, memory.read_many([(impl, _IMPL_BYTES) for impl in impls.values()]), strict=True))
    located = {a: body for a, body in bodies.items() if body and _locate(body, a) == _CHECKED_BACK + 8}
    found = _contents(memory, located)
    metas = memory.read_many([(struct.unpack_from("<Q", located[a], _META)[0], _META_BYTES) for a in found])
    for (address, content), body, meta in zip(list(found.items()), map(located.get, found), metas, strict=True):
        if body is not None and meta is not None and _is_meta(struct.unpack_from("<Q", body, _META)[0], meta):
            (gradient,) = struct.unpack_from("<Q", meta, _GRAD)
            found[address] = replace(content, gradient=gradient, trainable=meta[_REQUIRES_GRAD] == 1)
    return found


def locate_gradients(memory: Memory, contents: Mapping[int, Content]) -> dict[int, Content]:
    """The gradients of these tensors, by the tensor's object. Raises Unreadable."""
    wanted = {address: content for address, content in contents.items() if content.gradient}
    bodies = memory.read_many([(content.gradient, _IMPL_BYTES) for content in wanted.values()])
    found = _contents(memory, {a: body for a, body in zip(wanted, bodies, strict=True) if body is not None})
    return {address: content for address, content in found.items() if content.tensor == wanted[address].tensor}


def _contents(memory: Memory, bodies: Mapping[int, bytes]) -> dict[int, Content]:
    """From bytes of implementations; parameters have few dimensions, so their sizes are inline."""
    tensors = {address: _tensor(body, _CHECKED_BACK + 8, None) for address, body in bodies.items()}
    floats = {a: tensor for a, tensor in tensors.items() if tensor is not None and tensor.dtype in FLOATS}
    storages = memory.read_many([(struct.unpack_from("<Q", bodies[a], _STORAGE)[0], _STORAGE_HEAD) for a in floats])
    found: dict[int, Content] = {}
    for (address, tensor), storage in zip(floats.items(), storages, strict=True):
        counter = struct.unpack_from("<Q", bodies[address], _COUNTER)[0] + _VERSION
        if tensor.device != "cpu":
            found[address] = Content(tensor, 0, 0, counter)
        elif storage is not None:
            (data,), (held,) = (struct.unpack_from("<Q", storage, offset) for offset in (_DATA, _DATA_BYTES))
            (offset,) = struct.unpack_from("<q", bodies[address], _CHECKED_BACK + 16 + 16 * _INLINE)
            width, count = FLOATS[tensor.dtype], math.prod(tensor.shape)
            if count and (offset + count) * width <= held:
                found[address] = Content(tensor, data + offset * width, count * width, counter)
    return found


def _is_meta(address: int, meta: bytes) -> bool:
    """True if this is torch's AutogradMeta of a tensor without a name."""
    return struct.unpack_from("<2Q", meta, _NAME) == (address + _NAME_BUFFER, 0) and meta[_REQUIRES_GRAD] <= 1
