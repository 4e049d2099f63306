"""Variable records, from py-spy's text and from the object in memory."""

from __future__ import annotations

import math
import re

from hangdoc.evidence import Tensor, Variable
from hangdoc.introspect.objects import Seen
from hangdoc.redaction.text import redact

TEXT = 120  # characters

_KINDS = (
    ("none", re.compile(r"None")),
    ("bool", re.compile(r"True|False")),
    ("int", re.compile(r"-?\d+|[+-]bigint")),
    ("float", re.compile(r"-?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf)|nan", re.IGNORECASE)),
    ("str", re.compile(r'".*', re.DOTALL)),
    ("list", re.compile(r"\[.*", re.DOTALL)),
    ("tuple", re.compile(r"\(.*", re.DOTALL)),
    ("dict", re.compile(r"\{.*", re.DOTALL)),
)
_DUNDER = re.compile(r"__\w+__")
# Definitions, not data: `<function at 0x..>`.
_DEFINITIONS = frozenset(
    ["module", "function", "type", "ABCMeta", "EnumMeta", "EnumType", "pybind11_type", "method", "method-wrapper",
     "builtin_function_or_method", "classmethod", "staticmethod", "property", "wrapper_descriptor", "method_descriptor",
     "getset_descriptor", "_Feature"]
)  # fmt: skip
_OBJECT = re.compile(r"<([\w.]+) at 0x[0-9a-f]+>")


def from_text(
    name: str, text: str, address: int | None, argument: bool, seen: Seen | None, tensor: Tensor | None
) -> Variable:
    """A local variable printed by py-spy.

    `seen` and `tensor` were read after the text and are used only if they still agree with it.
    """
    kind = next((kind for kind, pattern in _KINDS if pattern.fullmatch(text)), "object")
    length = seen.length if seen is not None and seen.kind == kind else None
    if tensor is not None and seen is not None and _type_name(text) == seen.type.name.rpartition(".")[2]:
        return Variable(name, _show(tensor, seen), argument, None, _first(tensor), "tensor", address, tensor)
    return Variable(name, _clean(name, text), argument, _number(kind, text, seen), length, kind, address)


def from_object(name: str, address: int, seen: Seen, tensor: Tensor | None) -> Variable:
    """A variable read from memory alone."""
    if tensor is not None:
        return Variable(name, _show(tensor, seen), False, None, _first(tensor), "tensor", address, tensor)
    text = seen.text
    if text is None:
        label = seen.type.name.rpartition(".")[2] if seen.kind == "object" else seen.kind
        text = f"{label} of {seen.length}" if seen.length is not None else f"<{label} at {address:#x}>"
    elif seen.kind == "str":
        text = f'"{text}"' if seen.length == len(text) else f'"{text}..."'
    return Variable(name, _clean(name, text), False, _finite(seen.number), seen.length, seen.kind, address)


def is_data(name: str, text: str) -> bool:
    """False for dunder names, modules, functions and classes."""
    return not is_dunder(name) and _type_name(text) not in _DEFINITIONS


def is_dunder(name: str) -> bool:
    return _DUNDER.fullmatch(name) is not None


def shorten(text: str, limit: int = TEXT) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _clean(name: str, text: str) -> str:
    # Redact before shortening: a cut secret would not be recognised. Text far beyond the cut does not matter.
    return shorten(redact(name, text[: 4 * TEXT]))


def _show(tensor: Tensor, seen: Seen) -> str:
    shape = ", ".join(map(str, tensor.shape))
    return shorten(f"{seen.type.name.rpartition('.')[2]}([{shape}], {tensor.dtype}, {tensor.device})")


def _first(tensor: Tensor) -> int | None:
    """`len()` of a tensor."""
    return tensor.shape[0] if tensor.shape else None


def _type_name(text: str) -> str | None:
    match = _OBJECT.fullmatch(text)
    return match[1].rpartition(".")[2] if match else None


def _number(kind: str, text: str, seen: Seen | None) -> float | None:
    if kind == "bool":
        return float(text == "True")
    try:
        return _finite(float(text)) if kind in ("int", "float") else None
    except ValueError:  # py-spy prints no digits of a bigint
        return seen.number if seen is not None and seen.kind == "int" else None


def _finite(number: float | None) -> float | None:
    """None for infinities and NaN, which JSON cannot represent."""
    return number if number is not None and math.isfinite(number) else None
