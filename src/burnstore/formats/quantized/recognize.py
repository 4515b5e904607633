"""Find the quantized tensors of a file: by its configuration, or by names, shapes and dtypes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...errors import BurnstoreError, CorruptError, LimitError, counted, located, printable
from ...io.documents import Bounds, read_json
from ...io.opening import read_whole
from ...io.paths import exists, folder_of, is_remote, join
from ...io.source import BytesSource, Source
from ...limits import Limits
from ...tensor.data import Shape
from ...tensor.dtype import DType
from ...tensor.facts import DecodedData, Facts, Scheme, Stored
from ...tensor.note import Note
from ...tensor.sources import SourceData
from ..base import QUANTIZATION_KEY, Contents, Table
from .data import QuantizedData, RefusedData

_CONFIG_BYTES = 16 << 20
_STATE_BYTES = 1 << 16
_BOUNDS = Bounds(nbytes=_CONFIG_BYTES, constants=True)

_FP8 = {DType.F8_E4M3, DType.F8_E5M2, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ}
_CODES = {*_FP8, DType.I8, DType.U8, DType.I32, DType.F4}
_SCALES = {DType.F32, DType.F16, DType.BF16, DType.F8_E8M0, DType.U8}
_BLOCK = 128
_BESIDE = "put the config.json beside the file: its quantization_config states the scheme"


class _Part(NamedTuple):
    """A tensor of the file."""

    row: int
    name: str
    dtype: DType
    shape: Shape


class _Found(NamedTuple):
    """A tensor that is made of several of the file."""

    name: str
    dtype: DType
    shape: Shape
    data: DecodedData
    scheme: Scheme


class _RefusedError(Exception):
    """The parts of a tensor leave its meaning open."""

    def __init__(self, why: str, rule: str = "QW-02", hint: str = _BESIDE) -> None:
        super().__init__(why)
        self.why, self.rule, self.hint = why, rule, hint


def recognize(contents: Contents, source: Source, opened: Source, limits: Limits) -> Contents:
    """Return the contents of a file with each set of codes and scales as one tensor.

    ``source`` is that of the table's offsets, ``opened`` the file whose folder may have a ``config.json``.
    """
    table = contents.table
    known = table.known_kinds
    dtypes = {dtype for dtype, _ in known.pairs} if known is not None else set(table.dtypes)
    if not dtypes & _CODES:
        return contents
    config, text = _config(contents.metadata, opened)
    finder = _Finder(contents, source, config, limits)
    finder.find()
    if not finder.made:
        notes = finder.plain_notes()
        return replace(contents, notes=(*contents.notes, *notes)) if notes else contents
    metadata = contents.metadata
    if text is not None and QUANTIZATION_KEY not in metadata:
        metadata = {**metadata, QUANTIZATION_KEY: text}
    made = finder.table()
    names = set(made.names)
    shared = [tuple(name for name in group if name in names) for group in contents.shared]
    return replace(
        contents,
        table=made,
        metadata=metadata,
        notes=(*contents.notes, *finder.notes()),
        shared=[group for group in shared if len(group) > 1],
    )


def _config(metadata: Mapping[str, str], opened: Source) -> tuple[Mapping[str, Any], str | None]:
    """Return the quantization_config that the metadata keep or that a config.json beside the file has, and its text."""
    text = metadata.get(QUANTIZATION_KEY)
    if text is not None:
        with located(rule="QW-02"):
            return read_json(text, _BOUNDS, into=dict[str, Any]), text
    if isinstance(opened, BytesSource):
        return {}, None
    path = join(folder_of(opened.name if is_remote(opened.name) else os.path.abspath(opened.name)), "config.json")
    try:
        if not exists(path):
            return {}, None
        document = read_json(read_whole(path, _CONFIG_BYTES), _BOUNDS)
    except (BurnstoreError, OSError):
        return {}, None  # a file of another program: the evidence decides
    config = document.get("quantization_config") if isinstance(document, dict) else None
    if config is None and isinstance(document, dict) and isinstance(document.get("text_config"), dict):
        config = document["text_config"].get("quantization_config")
    if not isinstance(config, dict):
        return {}, None
    import json  # not at import: few files have a configuration

    return config, json.dumps(config)


class _Finder:
    """The search in one file."""

    def __init__(self, contents: Contents, source: Source, config: Mapping[str, Any], limits: Limits) -> None:
        self.contents, self.source, self.config, self.limits = contents, source, config, limits
        table = self._table = contents.table
        self._rows = dict(zip(table.names, range(len(table.names)), strict=True))
        self.made: dict[int, _Found] = {}
        self._taken: set[int] = set()
        method = config.get("quant_method")
        self.method = method if isinstance(method, str) else ""
        self._weights = self._weight_arguments()

    def find(self) -> None:
        """Find all sets; each tensor belongs to at most one."""
        self._find_torchao()
        self._find_bitsandbytes()
        for row, (name, dtype) in enumerate(zip(self._table.names, self._table.dtypes, strict=True)):
            if dtype not in _CODES or row in self._taken or row in self._table.facts:
                continue
            parts = self._parts_of(name, dtype)
            if parts is not None:
                self._add(*parts)
        self._refuse_orphans()

    def _find_bitsandbytes(self) -> None:
        """Find the weights of 4 bits; their codes may be stored as numbers of any dtype (``quant_storage``)."""
        for name in list(self._rows):
            whole, found, kind = name.rpartition(".quant_state.bitsandbytes__")
            if not found or kind not in ("nf4", "fp4") or not self._get(whole) or not self._get(name):
                continue
            names = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
            self._add("bnb4", whole, self._get(whole, *(whole + each for each in names), name), kind.upper())

    # --- which tensors belong together ---

    def _parts_of(self, name: str, dtype: DType) -> tuple[str, str, list[_Part], str] | None:
        """Return the scheme, the name of the whole, its parts and the name of the scheme; None for a plain tensor."""
        module = name.rpartition(".")[0]
        prefix = f"{module}." if module else ""
        if name.endswith(".qweight") or name == "qweight":
            parts = self._get(name, prefix + "qzeros", prefix + "scales", prefix + "g_idx")
            if len(parts) >= 3 and parts[2].name.endswith("scales"):
                return "gptq or awq", prefix + "weight", parts, ""
        if name.endswith("weight_packed"):
            return self._packed_parts(name, dtype)
        if name.endswith("_blocks") and dtype is DType.U8:
            parts = self._get(name, name.removesuffix("_blocks") + "_scales")
            return ("gpt-oss", name.removesuffix("_blocks"), parts, "MXFP4") if len(parts) == 2 else None
        if dtype is DType.U8:
            return self._byte_parts(name)
        if dtype is DType.I8 and prefix + "SCB" in self._rows and name == prefix + "weight":
            return "bnb8", name, self._get(name, prefix + "SCB"), "INT8"
        if dtype in _FP8 or dtype in (DType.I8, DType.F4):
            return self._scaled_parts(name, prefix, dtype)
        return None

    def _packed_parts(self, name: str, dtype: DType) -> tuple[str, str, list[_Part], str] | None:
        stem = name.removesuffix("_packed")
        whole = stem
        if dtype is DType.U8:
            parts = self._get(name, stem + "_scale", stem + "_global_scale")
            if len(parts) >= 2 and parts[1].dtype in (DType.U8, DType.F8_E8M0):
                return "exponents", whole, parts[:2], "MXFP4"
            return ("grouped", whole, parts, "NVFP4") if len(parts) == 3 else None
        parts = self._get(name, stem + "_scale", stem + "_zero_point", stem + "_g_idx", stem + "_shape")
        is_whole = {stem + "_scale", stem + "_shape"} <= {part.name for part in parts}
        return ("packed", whole, parts, "INT") if dtype is DType.I32 and is_whole else None

    def _byte_parts(self, name: str) -> tuple[str, str, list[_Part], str] | None:
        parts = self._get(name, f"{name}_scale", f"{name}_scale_2")
        if len(parts) == 3 and parts[1].dtype is DType.F8_E4M3:
            return "modelopt", name, parts, "NVFP4"
        return None

    def _scaled_parts(self, name: str, prefix: str, dtype: DType) -> tuple[str, str, list[_Part], str] | None:
        scales = [part for part in self._get(f"{name}_scale_inv", f"{name}_scale") if part.dtype in _SCALES]
        if name == prefix + "weight":
            scales += [
                part
                for part in self._get(prefix + "scale_inv", prefix + "scale")
                if part.dtype in _SCALES and (self.config or self._fits(name, part))
            ]
        if not scales:
            return None
        if dtype in (DType.I8, DType.F4) and not (name == prefix + "weight" or self.config):
            return None  # integers beside a tensor whose name happens to fit
        own = self._get(name)
        zeros = self._get(f"{name}_zero_point") if dtype is DType.I8 else []
        label = "FP8" if dtype in _FP8 else "INT8" if dtype is DType.I8 else "FP4"
        return "scaled", name, [*own, *scales, *zeros], label

    def _fits(self, name: str, scale: _Part) -> bool:
        """Return whether a module's ``scale`` is that of its weight (QW-06); any module may have a ``scale``."""
        codes = self._get(name)[0]
        is_matrix = len(codes.shape) > 1 and math.prod(scale.shape) < math.prod(codes.shape)
        if not is_matrix or scale.dtype is DType.U8:
            return False
        try:
            _grid(codes.shape, scale.shape, None)
        except _RefusedError as refused:
            return refused.rule == "QW-02"  # it fits in several ways
        return True

    def _get(self, *names: str) -> list[_Part]:
        """Return those of these tensors that the file has and no other set uses."""
        table = self._table
        rows = [(name, self._rows[name]) for name in names if name in self._rows]
        return [
            _Part(row, name, table.dtypes[row], table.shapes[row])
            for name, row in rows
            if row not in self._taken and row not in table.facts
        ]

    # --- what they mean ---

    def _add(self, scheme: str, whole: str, parts: list[_Part], label: str) -> None:
        codes = parts[0]
        try:
            if whole != codes.name and whole in self._rows:
                raise _RefusedError(f"the file has both {printable(codes.name)} and {printable(whole)}")
            found = getattr(self, f"_make_{_METHODS[scheme]}")(whole, parts, label)
        except _RefusedError as refused:
            data = RefusedData(self._stored(parts), refused.why, refused.rule, refused.hint)
            described = Scheme(label or scheme, tuple(part.name for part in parts), "not decoded")
            name = codes.name if whole in self._rows else whole
            found = _Found(name, DType.F32, codes.shape, data, described)  # floats, of which nothing else is known
        self.made[codes.row] = found
        self._taken.update(part.row for part in parts)

    def _stored(self, parts: Sequence[_Part]) -> tuple[Stored, ...]:
        table = self._table
        return tuple(
            Stored(
                part.name,
                part.dtype,
                part.shape,
                table.apart.get(part.row) or SourceData(self.source, table.offsets[part.row], table.sizes[part.row]),
                table.sizes[part.row],
            )
            for part in parts
        )

    def _found(
        self, whole: str, parts: Sequence[_Part], decoder: str, options: Any, dtype: DType, shape: Shape, scheme: Scheme
    ) -> _Found:
        if math.prod(extent or 1 for extent in shape) * dtype.bits // 8 > self.limits.tensor_bytes:
            raise LimitError(f"shape {list(shape)} is beyond the limit", tensor=whole, rule="QW-04")
        return _Found(whole, dtype, shape, QuantizedData(self._stored(parts), decoder, options, dtype, shape), scheme)

    def _make_scaled(self, whole: str, parts: list[_Part], label: str) -> _Found:
        codes, *rest = parts
        scales = [part for part in rest if not part.name.endswith("_zero_point")]
        zeros = [part for part in rest if part.name.endswith("_zero_point")]
        names = ", ".join(printable(part.name) for part in scales)
        if len(scales) > 1:
            raise _RefusedError(f"it has several scales, and nothing states which is its own: {names}")
        if codes.dtype is DType.F4:
            raise _RefusedError("packed FP4 with one level of scales is not decoded here", hint="decode it with torch")
        scale = scales[0]
        is_packed = codes.dtype is DType.I8 and self._holds_two(codes, scale, bool(zeros))
        shape = (*codes.shape[:-1], 2 * codes.shape[-1]) if is_packed else codes.shape
        label = "FP4" if is_packed else label
        grid, blocks = _grid(shape, scale.shape, self._block_size() if not is_packed else None)
        if zeros and math.prod(zeros[0].shape) != math.prod(scale.shape):
            raise _RefusedError(f"zero points of {list(zeros[0].shape)} for scales of {list(scale.shape)}", "QW-04")
        dtype = scale.dtype if scale.dtype in (DType.F32, DType.F16, DType.BF16) else DType.BF16
        detail = _described(shape, grid, blocks)
        used = [codes, scale, *zeros]
        scheme = Scheme(label, tuple(part.name for part in used), detail)
        return self._found(whole, used, "scaled", (blocks, is_packed, grid), dtype, shape, scheme)

    def _holds_two(self, codes: _Part, scale: _Part, has_zeros: bool) -> bool:
        """Return whether a byte of I8 has two FP4 codes, as in files of the method fp8 whose experts are in FP4."""
        if self.method == "fp8":
            return True
        grid = scale.shape[-1] if len(scale.shape) == len(codes.shape) > 1 else 1
        if grid == 1 or has_zeros or self._weights:
            return False
        if scale.dtype in (DType.F8_E8M0, DType.U8):
            return True
        raise _RefusedError("INT8 in groups, or two FP4 numbers in a byte: nothing states which")

    def _make_nvfp4(self, whole: str, parts: list[_Part], label: str) -> _Found:
        codes, scale, outer = parts
        if len(codes.shape) != 2 or len(scale.shape) != 2 or scale.shape[0] != codes.shape[0] or not scale.shape[1]:
            raise _RefusedError(f"codes of {list(codes.shape)} and scales of {list(scale.shape)}", "QW-01")
        if math.prod(outer.shape) != 1 or 2 * codes.shape[1] % scale.shape[1]:
            raise _RefusedError(f"codes of {list(codes.shape)} and scales of {list(scale.shape)}", "QW-01")
        shape = (codes.shape[0], 2 * codes.shape[1])
        group = shape[1] // scale.shape[1]
        divides = outer.name.endswith("_global_scale")
        scheme = Scheme(label, tuple(part.name for part in parts), f"groups of {group}")
        return self._found(whole, parts, "grouped", (group, divides), DType.BF16, shape, scheme)

    def _make_mxfp4(self, whole: str, parts: list[_Part], label: str) -> _Found:
        codes, scale = parts
        fits = len(codes.shape) == len(scale.shape) == 2 and codes.shape[0] == scale.shape[0]
        if not fits or 2 * codes.shape[1] != 32 * scale.shape[1]:
            raise _RefusedError(f"codes of {list(codes.shape)} and scales of {list(scale.shape)}", "QW-01")
        shape = (codes.shape[0], 2 * codes.shape[1])
        scheme = Scheme(label, tuple(part.name for part in parts), "groups of 32")
        return self._found(whole, parts, "exponents", (), DType.BF16, shape, scheme)

    def _make_gpt_oss(self, whole: str, parts: list[_Part], label: str) -> _Found:
        codes, scale = parts
        if len(codes.shape) != 4 or codes.shape[:-1] != scale.shape or scale.dtype is not DType.U8:
            raise _RefusedError(f"blocks of {list(codes.shape)} and scales of {list(scale.shape)}", "QW-01")
        experts, rows, groups, width = codes.shape
        scheme = Scheme(label, tuple(part.name for part in parts), f"groups of {2 * width}, transposed")
        shape = (experts, groups * width * 2, rows)
        return self._found(whole, parts, "gpt-oss", (), DType.BF16, shape, scheme)

    def _make_packed(self, whole: str, parts: list[_Part], label: str) -> _Found:
        by_name = {part.name.removeprefix(whole): part for part in parts}
        codes, scale = by_name["_packed"], by_name["_scale"]
        zeros, index = by_name.get("_zero_point"), by_name.get("_g_idx")
        stated = self._integers(by_name["_shape"], 2)
        if len(codes.shape) != 2 or stated[0] != codes.shape[0] or stated[1] < 1:
            raise _RefusedError(f"packed codes of {list(codes.shape)} for a shape of {list(stated)}", "QW-04")
        bits, dense = self._bits(codes, stated)
        groups = scale.shape[1] if len(scale.shape) == 2 else 1
        rows = scale.shape[0] if scale.shape else 1
        if rows not in (1, stated[0]) or not groups or (stated[1] % groups and index is None):
            raise _RefusedError(f"scales of {list(scale.shape)} for a shape of {list(stated)}", "QW-01")
        words = -(-stated[0] * bits // 32) if dense else -(-stated[0] // (32 // bits))
        if zeros is not None and (zeros.dtype is not DType.I32 or zeros.shape != (words, groups)):
            raise _RefusedError(f"packed zero points of {list(zeros.shape)}, not {[words, groups]}", "QW-04")
        if index is not None and index.shape != (stated[1],):
            raise _RefusedError(f"groups of {list(index.shape)} columns, not {[stated[1]]}", "QW-04")
        used = [codes, scale, *(part for part in (zeros, index) if part is not None), by_name["_shape"]]
        detail = f"groups of {stated[1] // groups}" if groups > 1 else "a scale per row" if rows > 1 else "one scale"
        scheme = Scheme(f"INT{bits}", tuple(part.name for part in used), f"{detail}, packed")
        options = (bits, dense, groups, zeros is not None, index is not None)
        return self._found(whole, used, "packed", options, _float_of(scale), stated, scheme)

    def _bits(self, codes: _Part, shape: Shape) -> tuple[int, bool]:
        """Return the bits of packed codes, and whether they are packed without gaps."""
        stated = self._weights.get("num_bits")
        given = [stated] if isinstance(stated, int) and not isinstance(stated, bool) else range(1, 9)
        fits = set()
        for bits in given:
            if 1 <= bits <= 8 and -(-shape[1] * bits // 32) == codes.shape[1]:
                fits.add((bits, True))
            if 1 <= bits <= 8 and -(-shape[1] // (32 // bits)) == codes.shape[1] and 32 % bits:
                fits.add((bits, False))
        if len(fits) != 1:
            known = ", ".join(f"{bits} bits{'' if dense else ' with gaps'}" for bits, dense in sorted(fits)) or "none"
            raise _RefusedError(f"packed rows of {codes.shape[1]} words for {shape[1]} columns; these fit: {known}")
        return next(iter(fits))

    def _make_words(self, whole: str, parts: list[_Part], label: str) -> _Found:
        """Tell GPTQ from AWQ: they pack along the inputs and along the outputs."""
        codes, zeros, scale = parts[:3]
        index = parts[3] if len(parts) > 3 else None
        if any(len(part.shape) != 2 for part in parts[:3]) or zeros.shape[0] != scale.shape[0] or not scale.shape[0]:
            raise _RefusedError("the shapes of qweight, qzeros and scales do not fit", "QW-04")
        outputs = scale.shape[1]
        is_gptq, is_awq = codes.shape[1] == outputs, codes.shape[1] * 8 == outputs
        if is_gptq and self.method != "awq":
            return self._make_gptq(whole, codes, zeros, scale, index)
        if is_awq and self.method != "gptq" and zeros.shape[1] * 8 == outputs:
            if index is not None:
                raise _RefusedError("AWQ has no g_idx", "QW-04")
            if self.config.get("bits", 4) != 4 or self.config.get("version", "gemm") not in ("gemm", "GEMM"):
                raise _RefusedError("only AWQ of 4 bits in the order of its gemm kernel is decoded", hint="use AutoAWQ")
            shape = (outputs, codes.shape[0])
            scheme = Scheme("AWQ", tuple(part.name for part in parts[:3]), f"4 bits, groups of {_group(shape, scale)}")
            return self._found(whole, parts[:3], "awq", (), _float_of(scale), shape, scheme)
        raise _RefusedError("the shapes of qweight, qzeros and scales are neither GPTQ's nor AWQ's", "QW-04")

    def _make_gptq(self, whole: str, codes: _Part, zeros: _Part, scale: _Part, index: _Part | None) -> _Found:
        outputs = scale.shape[1]
        bits = self.config.get("bits", 32 * zeros.shape[1] // max(outputs, 1))
        if bits not in (2, 3, 4, 8) or codes.shape[0] * 32 % bits or -(-outputs * bits // 32) != zeros.shape[1]:
            raise _RefusedError(f"zero points of {list(zeros.shape)} for {outputs} columns", "QW-04")
        inputs = codes.shape[0] * 32 // bits
        if index is not None and index.shape != (inputs,):
            raise _RefusedError(f"g_idx of {list(index.shape)} for {inputs} inputs", "QW-04")
        form = self.config.get("checkpoint_format", "gptq" if self.method == "gptq" else None)
        added = {"gptq": 1, "gptq_v2": 0, None: None}.get(form, "")
        if added == "":
            raise _RefusedError(f"GPTQ in the form {printable(str(form))} is not known", hint="use GPTQModel")
        shape = (outputs, inputs)
        used = [codes, zeros, scale, *([index] if index is not None else [])]
        detail = f"{bits} bits, groups of {_group(shape, scale)}"
        scheme = Scheme("GPTQ", tuple(part.name for part in used), detail)
        return self._found(whole, used, "gptq", (bits, added, index is not None), _float_of(scale), shape, scheme)

    def _make_bnb4(self, whole: str, parts: list[_Part], label: str) -> _Found:
        by_name = {part.name.removeprefix(whole): part for part in parts}
        state = self._state(parts[-1])
        nested = None
        if "nested_blocksize" in state:
            nested = (state["nested_blocksize"], state.get("nested_offset"))
        wanted = ["", ".absmax", ".quant_map", *([".nested_absmax", ".nested_quant_map"] if nested else [])]
        missing = [name for name in wanted if name not in by_name]
        block: Any = state.get("blocksize")
        shape: Any = state.get("shape")
        dtype = _BNB_DTYPES.get(str(state.get("dtype")))
        is_valid = _are_naturals([block]) and isinstance(shape, list) and _are_naturals(shape) and dtype is not None
        if nested is not None:
            is_valid = is_valid and _are_naturals([nested[0]]) and isinstance(nested[1], (int, float))
        if missing or not is_valid or dtype is None:
            why = f"{missing[0]} is missing" if missing else "its quant_state is not that of bitsandbytes"
            raise _RefusedError(f"bitsandbytes: {why}", "QW-04")
        count, nbytes = math.prod(shape), self._table.sizes[by_name[""].row]
        blocks = -(-count // block)
        fits = 2 * nbytes in (count, count + 1) and math.prod(by_name[".absmax"].shape) == blocks
        fits = fits and by_name[".quant_map"].shape == (16,) and block % 2 == 0 and len(shape) > 0
        if nested is not None:
            outer, table = by_name[".nested_absmax"], by_name[".nested_quant_map"]
            fits = fits and math.prod(outer.shape) == -(-blocks // nested[0]) and table.shape == (256,)
            fits = fits and by_name[".absmax"].dtype is DType.U8
        if not fits:
            raise _RefusedError("bitsandbytes: the parts do not fit the shape that quant_state states", "QW-04")
        used = [by_name[name] for name in wanted] + [parts[-1]]
        detail = f"blocks of {block}{', nested scales' if nested else ''}"
        scheme = Scheme(label, tuple(part.name for part in used), detail)
        return self._found(whole, used, "bnb4", (block, nested), dtype, tuple(shape), scheme)

    def _make_bnb8(self, whole: str, parts: list[_Part], label: str) -> _Found:
        codes, scale = parts
        if not codes.shape or math.prod(scale.shape) != codes.shape[0] or scale.dtype is not DType.F32:
            raise _RefusedError(f"SCB of {list(scale.shape)} for {list(codes.shape)}", "QW-01")
        scheme = Scheme(label, tuple(part.name for part in parts), "a scale per row, of bitsandbytes")
        return self._found(whole, parts, "bnb8", (), DType.F32, codes.shape, scheme)

    # --- torchao ---

    def _find_torchao(self) -> None:
        """Find the tensors that torchao's writer describes in the metadata of a SafeTensors file."""
        metadata = self.contents.metadata
        if "tensor_names" not in metadata or not any("_qdata" in name for name in self._rows):
            return
        for whole in _names(metadata["tensor_names"]):
            described = _object(metadata.get(whole, ""))
            kind = described.get("_type")
            if not isinstance(kind, str) or kind == "Tensor" or "." not in whole:
                continue
            module, _, leaf = whole.rpartition(".")
            prefix = f"{module}._{leaf}_"
            parts = self._get(f"{prefix}qdata", f"{prefix}scale", f"{prefix}zero_point")
            rest = [self._get(name)[0] for name in self._rows if name.startswith(prefix) and self._get(name)]
            others = [part for part in rest if part not in parts]
            if not parts or not parts[0].name.endswith("qdata"):
                continue
            self._add("torchao", whole, [*parts, *others], kind)

    def _make_torchao(self, whole: str, parts: list[_Part], label: str) -> _Found:
        codes = parts[0]
        data = _object(self.contents.metadata[whole]).get("_data")
        named = {part.name.rpartition("_")[2]: part for part in parts[1:]}
        plain = all(part.name.endswith(("_scale", "_zero_point")) for part in parts[1:])
        if label not in ("Float8Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor") or "scale" not in named or not plain:
            raise _RefusedError(f"torchao's {printable(label)} is not decoded here", hint="load it with torchao")
        scale, zeros = named["scale"], named.get("point")
        if codes.dtype not in (*_FP8, DType.I8) or not isinstance(data, dict):
            raise _RefusedError(f"torchao's {printable(label)} of {codes.dtype}", "QW-04")
        given = data.get("block_size")
        blocks = tuple(given) if isinstance(given, list) and _are_naturals(given) else None
        grid, found = _grid(codes.shape, scale.shape, blocks[-2:] if blocks and len(blocks) > 1 else None)
        if zeros is not None and math.prod(zeros.shape) != math.prod(scale.shape):
            raise _RefusedError(f"zero points of {list(zeros.shape)} for scales of {list(scale.shape)}", "QW-04")
        used = [codes, scale, *([zeros] if zeros is not None else [])]
        named_dtype = data.get("dtype")
        name = named_dtype.get("_data") if isinstance(named_dtype, dict) else named_dtype
        stated = _TORCH_DTYPES.get(str(name).removeprefix("torch."))
        scheme = Scheme(label, tuple(part.name for part in used), f"torchao, {_described(codes.shape, grid, found)}")
        options = (found, False, grid)
        return self._found(whole, used, "scaled", options, stated or _float_of(scale), codes.shape, scheme)

    # --- small values that are read at once ---

    def _integers(self, part: _Part, count: int) -> Shape:
        if part.dtype not in (DType.I64, DType.I32) or math.prod(part.shape) != count:
            raise _RefusedError(f"{printable(part.name)} is not {count} integers", "QW-04")
        stored = self._stored([part])[0]
        raw = np.frombuffer(stored.data.window(0, stored.nbytes), part.dtype.numpy)
        values = tuple(int(value) for value in raw)
        if any(value < 0 or value >> 40 for value in values):
            raise _RefusedError(f"{printable(part.name)} states the shape {list(values)}", "QW-04")
        return values

    def _state(self, part: _Part) -> Mapping[str, Any]:
        stored = self._stored([part])[0]
        if part.dtype is not DType.U8 or stored.nbytes > _STATE_BYTES:
            raise _RefusedError("its quant_state is not that of bitsandbytes", "QW-04")
        return _object(bytes(stored.data.window(0, stored.nbytes)))

    def _weight_arguments(self) -> Mapping[str, Any]:
        """Return what compressed-tensors states about weights, where all groups agree."""
        groups = self.config.get("config_groups")
        found = (
            [each.get("weights") for each in groups.values() if isinstance(each, dict)]
            if isinstance(groups, dict)
            else []
        )
        known = [each for each in found if isinstance(each, dict)]
        return known[0] if known and all(each.get("num_bits") == known[0].get("num_bits") for each in known) else {}

    def _block_size(self) -> Shape | None:
        given = self.config.get("weight_block_size") or self._weights.get("block_structure")
        return tuple(given) if isinstance(given, (list, tuple)) and len(given) == 2 and _are_naturals(given) else None

    # --- the result ---

    def _refuse_orphans(self) -> None:
        """Refuse FP8 without a scale where others have one, or where the configuration states FP8 (QW-03)."""
        labels = {found.scheme.name for found in self.made.values()}
        if "FP8" not in labels and self.method not in ("fp8", "fbgemm_fp8"):
            return
        for row, (name, dtype) in enumerate(zip(self._table.names, self._table.dtypes, strict=True)):
            if dtype in _FP8 and row not in self._taken and row not in self._table.facts:
                part = self._get(name)
                why = "FP8 without its scale, which other tensors of this checkpoint have"
                hint = "open the index or the folder: the scale may be in another file of the set"
                data = RefusedData(self._stored(part), why, "QW-03", hint)
                self.made[row] = _Found(name, dtype, part[0].shape, data, Scheme("FP8", (name,), "scale missing"))

    def plain_notes(self) -> list[Note]:
        """Return a note of weights in FP8 in a file without any scale: it may be one of several files (QW-03)."""
        table = self._table
        names = [
            name
            for name, dtype, shape in zip(table.names, table.dtypes, table.shapes, strict=True)
            if dtype in _FP8 and len(shape) > 1 and name.endswith("weight")
        ]
        if not names:
            return []
        text = (
            f"{counted(len(names), 'weight')} in FP8, and no scales in the file: numbers are taken as they are stored"
        )
        return [Note("check", text, names[0])]

    def table(self) -> Table:
        """Return the tensors of the file, each set as one."""
        table, made = self._table, self.made
        rows = [row for row in range(len(table.names)) if row in made or row not in self._taken]
        kept = table.picked(rows)
        apart, facts = dict(kept.apart), dict(kept.facts)
        for place, row in enumerate(rows):
            if row not in made:
                continue
            found = made[row]
            kept.names[place], kept.dtypes[place], kept.shapes[place] = found.name, found.dtype, found.shape
            kept.sizes[place] = found.dtype.nbytes(found.shape)
            apart[place], facts[place] = found.data, Facts(scheme=found.scheme)
        if len(set(kept.names)) != len(kept.names):
            twice = next(name for name in kept.names if kept.names.count(name) > 1)
            raise CorruptError("two quantized tensors have this name", tensor=twice, rule="QW-02")
        return replace(kept, apart=apart, facts=facts)

    def notes(self) -> list[Note]:
        """Return what is decoded, and what cannot be."""
        counts: dict[str, int] = {}
        refused = []
        for found in self.made.values():
            if isinstance(found.data, RefusedData):
                refused.append(found)
            else:
                counts[found.scheme.name] = counts.get(found.scheme.name, 0) + 1
        listed = ", ".join(f"{count} in {name}" for name, count in counts.items())
        notes = [Note("cast", f"stored with scales and decoded when read: {listed}")] if counts else []
        notes += [
            Note("check", f"{printable(found.name)} cannot be decoded: {found.data.why}", found.name)
            for found in refused[:3]
            if isinstance(found.data, RefusedData)
        ]
        more = len(refused) - 3
        return [*notes, Note("check", f"{counted(more, 'more tensor')} cannot be decoded")] if more > 0 else notes


_METHODS = {
    "scaled": "scaled",
    "grouped": "nvfp4",
    "modelopt": "nvfp4",
    "exponents": "mxfp4",
    "gpt-oss": "gpt_oss",
    "packed": "packed",
    "gptq or awq": "words",
    "bnb4": "bnb4",
    "bnb8": "bnb8",
    "torchao": "torchao",
}
_BNB_DTYPES = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16}
_TORCH_DTYPES = _BNB_DTYPES


def _grid(shape: Shape, scales: Shape, wanted: Shape | None) -> tuple[Shape, Shape]:
    """Return the shape of the grid of scales and the size of its blocks, for a tensor of this shape (QW-01)."""
    if math.prod(scales) == 1:
        return (1,), tuple(max(extent, 1) for extent in shape)
    if not shape:
        raise _RefusedError(f"scales of {list(scales)} for a single number", "QW-01")
    if scales in ((shape[0],), shape[:-1]) and len(scales) < len(shape):
        scales = (*scales, *(1,) * (len(shape) - len(scales)))
    if len(scales) != len(shape):
        raise _RefusedError(f"scales of {list(scales)} for {list(shape)}", "QW-01")
    blocks = []
    for axis, (extent, count) in enumerate(zip(shape, scales, strict=True)):
        place = axis - (len(shape) - 2)
        own = wanted[place] if wanted is not None and place >= 0 else None
        blocks.append(_block(extent, count, own, shape, scales))
    return scales, tuple(blocks)


def _block(extent: int, count: int, wanted: int | None, shape: Shape, scales: Shape) -> int:
    if count == extent:
        return 1
    if count == 1:
        return max(extent, 1)
    if wanted is not None and count > 0 and -(-extent // wanted) == count:
        return wanted
    fits = {extent // count} if count and extent % count == 0 else set()
    if wanted is None and -(-extent // _BLOCK) == count:
        fits.add(_BLOCK)
    if len(fits) > 1:
        sizes = " and ".join(map(str, sorted(fits)))
        raise _RefusedError(
            f"scales of {list(scales)} for {list(shape)}: blocks of {sizes} fit, and nothing states which"
        )
    if not fits or wanted is not None:
        stated = f", with blocks of {wanted}" if wanted is not None else ""
        raise _RefusedError(f"scales of {list(scales)} do not fit a tensor of {list(shape)}{stated}", "QW-01")
    return fits.pop()


def _described(shape: Shape, grid: Shape, blocks: Shape) -> str:
    if math.prod(grid) == 1:
        return "one scale"
    if len(shape) == 1 or (grid[0] == shape[0] and all(count == 1 for count in grid[1:])):
        return "a scale per row"
    return f"blocks of {'x'.join(map(str, blocks[-2:]))}"


def _group(shape: Shape, scale: _Part) -> int:
    return -(-shape[1] // scale.shape[0])


def _float_of(scale: _Part) -> DType:
    return scale.dtype if scale.dtype in (DType.F32, DType.F16, DType.BF16) else DType.BF16


def _are_naturals(values: Any) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40 for value in values)


def _object(text: str | bytes) -> dict[str, Any]:
    """Return a small JSON object; an empty one if it is none."""
    try:
        found = read_json(text, _BOUNDS)
    except BurnstoreError:
        return {}
    return found if isinstance(found, dict) else {}


def _names(text: str) -> list[str]:
    try:
        found = read_json(text, _BOUNDS)
    except BurnstoreError:
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
