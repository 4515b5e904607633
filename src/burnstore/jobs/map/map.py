"""Map: which tensor of a PyTorch checkpoint is which tensor of a Burn model, found by structure, shapes and names.

outline    the Burn model: paths, shapes and the kinds of modules, in their order
align      pairs with evidence; what fits several ways becomes a question and is never decided
complete   buffers, ties, rotary features and norms by conventions that a file states (config.json)
rules      the pairs as a rules file; `convert` follows it, and its inverse is the way back
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from ...checkpoint import Checkpoint, open_checkpoint
from ...errors import BurnstoreError, ModelError, counted, entry_point, located
from ...io.atomic import atomic_file
from ...io.documents import Bounds, read_json
from ...io.opening import read_whole
from ...io.paths import as_path, base_name, exists, folder_of, is_folder, is_remote, join, with_options
from ...models.outline import Outline, outline_of
from ...pipeline.write import check_apart, files_read
from ...tensor.data import Shape
from ...tensor.tabular import Result
from ...transforms.recipe import Recipe, recipe_from, template
from .align import Alignment, Pair, Question
from .config import contradictions
from .rules import Row, families_of, rules_of, toml
from .units import Part, TargetSide, Unit, pairs_of, source_units, target_side
from .words import meaning, table

Rope = Literal["halves", "pairs"]
Qkv = Literal["parts", "heads"]
_CONFIG = Bounds(1 << 20, constants=True)
_CONFIG_HINT = "correct config.json, or move it away if it is not the checkpoint's"
_COPIED = frozenset({"embedding", "head"})


class MappedTensor(NamedTuple):
    """A tensor of the target, where it comes from, and how that is known.

    ``mark`` is ``"order"`` where only numbers or the order of fields decide, and ``"list"`` where the entries of a list
    fit each other's places, so that only the places decide.
    """

    target: str
    sources: tuple[str, ...]
    evidence: str
    mark: str = ""


@dataclass(frozen=True, slots=True)
class MapResult(Result):
    """What was found: ``tensors`` with evidence, ``questions`` that are open, and tensors that are left on either side.

    ``rules`` is the data of a rules file, and `text` the file. ``is_certain``: everything has its place, and
    nothing rests on order, which neither names nor shapes can prove.
    """

    tensors: list[MappedTensor]
    questions: list[Question]
    left_sources: list[str]
    left_targets: list[str]
    dropped: Mapping[str, str]
    rules: Mapping[str, Any] = field(repr=False)
    comments: Sequence[str] = field(default=(), repr=False)
    suggested: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """Rules for what the questions are about, the likeliest of those that fit; `text` has them as comments."""

    _read: tuple[str, ...] = field(default=(), repr=False)
    """The files that were read, which `save` must not replace."""

    @property
    def by_order(self) -> list[str]:
        """The targets that only numbers, or the order of fields, decide."""
        return [each.target for each in self.tensors if each.mark == "order"]

    @property
    def by_list(self) -> list[str]:
        """The targets in lists of equal entries, which are paired by their places."""
        return [each.target for each in self.tensors if each.mark == "list"]

    @property
    def list_note(self) -> str:
        """What a conversion along this mapping states about lists."""
        count = f"{len(self.by_list):,} tensor{'' if len(self.by_list) == 1 else 's'}"
        return f"the mapping pairs {count} by the place in a list alone, the first is {self.by_list[0]!r}"

    @property
    def is_complete(self) -> bool:
        """Whether every tensor on both sides has its place."""
        return not (self.questions or self.left_sources or self.left_targets)

    @property
    def is_certain(self) -> bool:
        """Whether it is complete, and names and shapes alone decide every pair."""
        return self.is_complete and not (self.by_order or self.by_list)

    @property
    def ok(self) -> bool:
        """Whether `convert` follows it: nothing is open, and only lists of equal entries rest on order."""
        return self.is_complete and not self.by_order

    @property
    def text(self) -> str:
        """The rules file, as TOML with the evidence in comments."""
        lines = [f"# {comment}" for comment in self.comments]
        lines += [f"{key} = {json.dumps(self.rules[key])}" for key in ("source_layout", "target_layout")]
        lines.append("tensors = [")
        evidence = {each.target: _evidence(each) for each in self.tensors}
        for rule in self.rules["tensors"]:
            first = rule.get("target", "")
            form = template(first if isinstance(first, str) else first[0])
            whys = [why for target, why in evidence.items() if form.match(target) is not None]
            why = next((why for why in whys if why.startswith("order")), next(iter(whys), ""))
            lines.append(f"  {toml(rule)},{f'  # {why}' if why and not rule.get('tie') else ''}")
        if self.suggested:
            lines.append("  # Open: these rules are the likeliest of several that fit. Correct them, and remove the #.")
        lines += [f"  # {toml(rule)}," for rule in self.suggested]
        return "\n".join([*lines, "]", ""])

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the rules file, all or nothing; SaveError if it would replace the source or the outline."""
        check_apart(self._read, as_path(path))
        raw = self.text.encode("utf-8")
        with atomic_file(path, overwrite=overwrite, size=len(raw)) as scratch:
            scratch.write(raw)

    def with_suggestions(self) -> MapResult | None:
        """Return the mapping with its suggestions as rules, None if something would still be open.

        Only a proof by output justifies it: a suggestion is the likeliest of several that fit.
        """
        if self.is_complete:
            return self
        recipe = recipe_from({**self.rules, "tensors": [*self.rules["tensors"], *self.suggested]})
        sources = [template(name) for rule in recipe.rules for name in rule.sources]
        targets = [template(name) for rule in recipe.rules for name in rule.targets]
        is_open = any(not any(form.match(name) is not None for form in targets) for name in self.left_targets)
        is_open = is_open or any(
            not any(form.match(name) is not None for form in sources) for name in self.left_sources
        )
        if is_open or not self.suggested or any(why.why.startswith("config.json") for why in self.questions):
            return None
        rules = {**self.rules, "tensors": [*self.rules["tensors"], *self.suggested]}
        return replace(self, questions=[], left_sources=[], left_targets=[], rules=rules, suggested=())

    def recipe(self, *, allow_missing: bool = False) -> Recipe:
        """Return the rules as a recipe; ModelError if something is open, or only numbers or fields decide it.

        Equal entries of lists follow their places: see `by_list`. With ``allow_missing`` the source may lack tensors.
        """
        is_ok = replace(self, left_targets=[]).ok if allow_missing else self.ok
        if not is_ok:
            task = "check the pairs marked 'order'" if self.is_complete else "edit what is open"
            raise ModelError(
                self._open(),
                hint="write the rules with burnstore map SRC --like OUTLINE --output rules.toml; "
                f'{task}, then pass rules="rules.toml"',
            )
        return recipe_from(self.rules)

    def _open(self) -> str:
        if self.questions:
            question = self.questions[0]
            count = counted(len(self.questions), "question is", "questions are")
            return f"{count} open, the first about {question.targets[0]!r}: {question.why}"
        if self.left_targets:
            count = counted(len(self.left_targets), "tensor")
            return f"nothing was found for {count}, the first is {self.left_targets[0]!r}"
        if self.left_sources:
            count = counted(len(self.left_sources), "tensor of the source is", "tensors of the source are")
            return f"{count} left, the first is {self.left_sources[0]!r}"
        return f"only order decides {counted(len(self.by_order), 'tensor')}, the first is {self.by_order[0]!r}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, ready for JSON."""
        return {"certain": self.is_certain, **super(MapResult, self).to_dict()}


def _evidence(tensor: MappedTensor) -> str:
    if tensor.mark == "order":
        return "order" if tensor.evidence == "order" else f"order: {tensor.evidence}"
    return f"{tensor.evidence}, by place in a list" if tensor.mark == "list" else tensor.evidence


@entry_point("map_names")
def map_names(
    source: str | os.PathLike[str],
    *,
    like: str | os.PathLike[str],
    rope: Rope | None = None,
    qkv: Qkv | None = None,
    top_level_key: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> MapResult:
    """Find which tensor of a PyTorch checkpoint becomes which tensor of the Burn model of an outline.

    ``like`` is an outline, see `burnstore outline`. ``rope="halves"`` states that the source rotates the halves of a
    head (Hugging Face's Llama), and brings its rows into the order of Burn's `RotaryEncoding`; ``"pairs"`` leaves them
    unchanged, for a source that rotates neighbouring pairs and for a Burn model that rotates halves. It is asked for
    wherever a model may rotate: neither names nor shapes show it, and a wrong order loads without an error. ``qkv``
    states whether a fused projection has the query, key and value one after the other (``"parts"``), or all three for
    each head (``"heads"``, as GPT-NeoX), which shapes do not show. Only headers are read, and values where two tensors
    may be the same. Nothing is applied: `MapResult.save` writes a rules file for `convert`, and ``convert(...,
    like=outline, map=True)`` does both if nothing is open.

    >>> import json, tempfile, numpy as np, burnstore as bs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = bs.save({"fc.weight": np.ones((4, 3))}, f"{folder}/a.safetensors", metadata={"format": "pt"})
    ...     outline = {"burnstore.outline": json.dumps({"format": 1, "modules": {"linear": "Struct:Linear"}})}
    ...     _ = bs.save({"linear.weight": np.ones((3, 4))}, f"{folder}/b.bpk", metadata=outline, layout="burn")
    ...     found = bs.map_names(f"{folder}/a.safetensors", like=f"{folder}/b.bpk")
    ...     found.tensors[0].sources, found.rules["tensors"][0]["target"], found.is_certain
    (('fc.weight',), 'linear.weight', True)
    """
    options: dict[str, Any] = {} if top_level_key is None else {"top_level_key": top_level_key}
    source, like = with_options(storage_options, source, like)
    with open_checkpoint(source, **options) as given, open_checkpoint(like) as other:
        outline = outline_of(other.metadata)
        if outline is None:
            raise ModelError(
                "this file is not an outline",
                path=other.path,
                hint="burnstore outline --rust prints code that writes one",
            )
        with located(path=given.path):
            names = [file.name for each in (given, other) for file in files_read(each)]
            read = tuple(name if is_remote(name) else os.path.abspath(name) for name in names)
            return replace(map_file(given, other, outline, rope, qkv), _read=read)


def map_file(
    source: Checkpoint,
    like: Checkpoint,
    outline: Outline,
    rope: Rope | None = None,
    qkv: Qkv | None = None,
    config: Mapping[str, Any] | None = None,
) -> MapResult:
    """Return the mapping of an open checkpoint to an open outline; ``config`` is that beside it, if not given."""
    if source.layout == "burn":
        raise ModelError("the source has Burn's layout; a mapping starts from PyTorch's")
    shapes = {name: tuple(source[name].shape) for name in source}
    side = target_side({name: tuple(like[name].shape) for name in like}, outline)
    units, buffers = source_units(shapes)
    units = _without_copies(units, side, source, buffers)
    alignment = Alignment(side)
    alignment.align(units, side.units)
    alignment.pair_rest()
    return _Completed(
        source, side, alignment, buffers, _config(source.path) if config is None else config, rope, qkv
    ).result()


def _without_copies(units: Sequence[Unit], side: TargetSide, source: Checkpoint, dropped: dict[str, str]) -> list[Unit]:
    """Leave out embeddings and heads that have the values of another one, where the target has fewer of them."""
    alike: dict[Shape, list[Unit]] = {}
    for unit in units:
        part = unit.tensors.get("weight")
        if part is not None and len(unit.tensors) == len(part.names) == 1 and _COPIED & meaning(unit.path).keys():
            alike.setdefault(part.shape, []).append(unit)
    copies: set[str] = set()
    for shape, members in alike.items():
        weights = [unit.tensors["weight"] for unit in side.units if "weight" in unit.tensors]
        wanted = sum(weight.shape in (shape, shape[::-1]) for weight in weights)
        members.sort(key=lambda unit: len(unit.path))
        first = source[members[0].tensors["weight"].names[0]]
        for unit in members[1:] if wanted < len(members) else ():
            name = unit.tensors["weight"].names[0]
            if source[name].dtype is first.dtype and source[name].to_bytes() == first.to_bytes():
                dropped[name] = f"equal to {first.path}"
                copies.add(unit.path)
    return [unit for unit in units if unit.path not in copies]


def _config(path: str) -> Mapping[str, Any]:
    """Return the config.json beside a checkpoint, as Hugging Face writes it; empty if there is none."""
    folder = path if is_folder(path) else folder_of(path if is_remote(path) else os.path.abspath(path))
    path = join(folder, "config.json")
    if not exists(path):
        return {}
    try:
        with located(path=path):
            config: dict[str, Any] = read_json(read_whole(path, _CONFIG.nbytes), _CONFIG, into=dict[str, Any])
    except BurnstoreError as error:
        error.hint = error.hint or _CONFIG_HINT
        raise
    return config


class _Completed:
    """A mapping with everything that pairs alone do not say."""

    def __init__(
        self,
        source: Checkpoint,
        side: TargetSide,
        alignment: Alignment,
        buffers: Mapping[str, str],
        config: Mapping[str, Any],
        rope: Rope | None,
        qkv: Qkv | None,
    ) -> None:
        self.source = source
        self.side = side
        self.alignment = alignment
        self.config = config
        self.kind = str(config.get("model_type", ""))
        self.rope = rope
        self.qkv = qkv
        self.dropped = dict(buffers)
        self.questions = list(alignment.questions)
        self.ties: list[Row] = []
        self.turned = self._orientation()

    def result(self) -> MapResult:
        self._check_attention()
        self._check_bare()
        self.questions += contradictions(self.config, self.source, self.side)
        rows = list(self._rows(self.alignment.pairs))
        self._tie(rows)
        rows += self._late_rows()
        rows = self._without_gaps(list(self._fused(rows)))
        is_rope_open = self._ask_for_rope(rows)
        rotated: list[Row] = []
        if is_rope_open:  # rules leave out what is asked
            asked = {row.sources for row in rows if _is_attention_input(row.target)}
            rows = [row for row in rows if row.sources not in asked]
            rotated = self._likely_rotated(asked)
        self._check_recurrent()
        names = list(self.source), list(self.side.shapes)
        rules = [*rules_of(rows, *names), *rules_of(self.ties, *names, tie=True)]
        for source, why in families_of(self.dropped):
            same = why.removeprefix("equal to ")
            rules.append({"source": source, "drop": why, **({} if same == why else {"equals": same})})
        questions = list(self.questions)
        likeliest = self._rows(self.alignment.likeliest)
        suggested = rotated + [
            row for row in likeliest if row.cut is None and not (is_rope_open and _is_attention_input(row.target))
        ]
        left = dict.fromkeys(part.names for unit, _ in self.alignment.sources for part in unit.tensors.values())
        return MapResult(
            [MappedTensor(row.target, row.sources, row.evidence, row.mark) for row in (*rows, *self.ties)],
            questions,
            [name for names in left for name in names if name not in self.dropped],
            [part.names[0] for unit, _ in self.alignment.targets for part in unit.tensors.values()],
            self.dropped,
            {"source_layout": "torch", "target_layout": "burn", "tensors": rules},
            (f"{base_name(self.source.path)} → a Burn model, found by burnstore map",),
            rules_of(suggested, *names),
        )

    # --- pairs

    def _late_rows(self) -> list[Row]:
        """Return the pairs of what was left elsewhere; questions where more is left, as after the loss of a tensor."""
        late = self.alignment.late
        if not (self.alignment.sources or self.alignment.targets or self.alignment.questions):
            return list(self._rows(late))
        for source, target, *_ in late:
            why = "it fits only outside of the module where it belongs, and other tensors have no place"
            self.questions.append(Question((target.path,), (source.name,), why))
        return []

    def _rows(self, pairs: Sequence[Pair]) -> Iterator[Row]:
        for pair in pairs:
            heads = self._heads(pair)
            for given, wanted, done in pairs_of(pair.source, pair.target):
                steps: list[tuple[str, Any]] = []
                if len(given.names) > 1:
                    steps.append(("fold_weight_norm", {"axis": given.folded}))
                if heads is not None and given.shape:
                    steps.append(("permute_rope", {"heads": given.shape[0] // heads}))
                if pair.target.kind == "RmsNorm" and self.kind in table()["adds one"]:
                    steps.append(("add_one", True))
                is_square = done == "square"
                if is_square and given.cut is not None:
                    is_square, done = False, "transpose" if given.cut[0] == 0 else ""
                if done == "transpose" or (is_square and self.turned.get(pair.block, True)):
                    steps.append(("transpose", True))
                if done == "reshape":
                    steps.append(("reshape", {"from": list(given.shape), "to": list(wanted.shape)}))
                yield Row(given.names, wanted.names[0], given.cut, tuple(steps), pair.evidence, pair.mark)

    def _orientation(self) -> dict[str, bool]:
        """Return for each kind of block whether its square matrices are transposed, as its other matrices are."""
        seen: dict[str, set[bool]] = {}
        square: dict[str, list[str]] = {}
        for pair in (*self.alignment.pairs, *self.alignment.late):
            for given, wanted, done in pairs_of(pair.source, pair.target):
                if not pair.target.is_transposed or len(wanted.shape) != 2:
                    continue
                if given.cut is not None:
                    seen.setdefault(pair.block, set()).add(given.cut[0] == 0)
                elif done == "square":
                    square.setdefault(pair.block, []).append(wanted.names[0])
                else:
                    seen.setdefault(pair.block, set()).add(done == "transpose")
        everywhere = {each for found in seen.values() for each in found}
        turned = {}
        for form, names in square.items():
            found = seen.get(form) or everywhere or {True}
            turned[form] = True in found
            if len(found) > 1:
                why = "square matrices: others beside them are transposed in part"
                self.questions.append(Question(tuple(names), ("transpose = true", "unchanged"), why))
        return turned

    def _check_attention(self) -> None:
        """Ask where the query, key and value of one module come from several: names of two modules were mixed."""
        owners: dict[str, dict[str, set[str]]] = {}
        for pair in self.alignment.pairs:
            owner, _, name = pair.target.path.rpartition(".")
            if any(word in meaning(name) for word in ("query", "key", "value")):
                place = (
                    pair.source.path if pair.source.shown != pair.source.path else pair.source.path.rpartition(".")[0]
                )
                owners.setdefault(owner, {}).setdefault(place, set()).add(pair.target.path)
        for owner, places in owners.items():
            if len(places) > 1:
                self.questions.append(
                    Question((owner,), tuple(places), "its query, key and value come from several modules")
                )

    def _check_bare(self) -> None:
        """Ask for the orientation of a square matrix that is a Linear's on one side only, and a bare parameter's."""
        for pair in (*self.alignment.pairs, *self.alignment.late):
            for given, wanted, _ in pairs_of(pair.source, pair.target):
                is_square = len(given.shape) == 2 and given.shape[0] == given.shape[1] > 1
                is_mixed = ("" in pair.source.tensors) != (pair.target.kind is None)
                if is_square and is_mixed and given.cut is None and pair.target.kind in (None, "Linear"):
                    why = "a square matrix of a Linear on one side only: nothing shows whether it is transposed"
                    self.questions.append(Question(wanted.names, ("transpose = true", "unchanged"), why))

    # --- conventions

    def _heads(self, pair: Pair) -> int | None:
        """Return the size of a head whose rotary features must be permuted; None if they need not be."""
        name = pair.target.shown.rpartition(".")[2]
        words = meaning(pair.target.shown)
        if self.rope != "halves" or "cross" in words or not any(word in meaning(name) for word in ("query", "key")):
            return None
        size = self._head_size(pair.target.path.rpartition(".")[0])
        if size is None:
            self.questions.append(Question((pair.target.path,), (), "nothing states the number of heads"))
        return size

    def _head_size(self, owner: str) -> int | None:
        """Return the size of a head of an attention module, as the outline or config.json states it."""
        attributes = self.side.outline.attributes.get(owner, {})
        query = next(
            (each for each in self.side.units if each.path.startswith(f"{owner}.") and "query" in meaning(each.path)),
            None,
        )
        counts = [
            int(value) for key, value in attributes.items() if "head" in key and "kv" not in key and value.isdecimal()
        ]
        if query is not None and "weight" in query.tensors and len(counts) == 1:
            return query.tensors["weight"].shape[-1] // counts[0]
        if isinstance(self.config.get("head_dim"), int):
            return int(self.config["head_dim"])
        hidden, heads = (
            next((self.config[key] for key in keys if isinstance(self.config.get(key), int)), 0)
            for keys in (("hidden_size", "n_embed", "n_embd"), ("num_attention_heads", "n_head"))
        )
        return hidden // heads if heads else None

    def _fused(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows with the order of fused queries, keys and values; ask for it where nothing states it."""
        kind = "timm" if "pretrained_cfg" in self.config else self.kind
        order = self.qkv or next((order for order, kinds in table()["fused order"].items() if kind in kinds), None)
        asked: dict[str, list[Row]] = {}
        for row in rows:
            words = meaning(row.target.rpartition(".")[0].rpartition(".")[2])
            is_fused = row.cut is not None and not words.keys().isdisjoint(("query", "key", "value"))
            if not is_fused or "in_proj_" in row.sources[0] or order == "parts":  # nn.MultiheadAttention has parts
                yield row
                continue
            owner = row.target.rpartition(".")[0].rpartition(".")[0]
            size = self._head_size(owner)
            if order is not None and size and row.cut is not None:
                yield row._replace(heads=(row.cut[2] - row.cut[1]) // size)
            else:
                asked.setdefault(row.sources[0], []).append(row)
        for members in asked.values():
            why = "nothing states the number of heads, of which each has a part"
            if order is None:
                why = "nothing states whether the fused query, key and value are one after the other, or for each head"
            choices = ("qkv=parts", "qkv=heads") if order is None else ()
            self.questions.append(Question(tuple(row.target for row in members), choices, why))

    def _check_recurrent(self) -> None:
        """Ask where a recurrent layer of the model computes something else than PyTorch's."""
        for path, attributes in self.side.outline.attributes.items():
            is_recurrent = self.side.outline.modules.get(path) in ("Struct:Lstm", "Struct:Gru", "Struct:Rnn")
            for key, value in (("reset_after", "false"), ("input_forget", "true"), ("reverse", "true")):
                if is_recurrent and attributes.get(key) == value:
                    why = f"it has {key} = {value}, which PyTorch's layer has not"
                    self.questions.append(Question((path,), (), why))

    @property
    def _rotates(self) -> bool:
        """Whether anything shows rotary features: the outline, config.json, or names; or nothing shows positions."""
        outline, config = self.side.outline, self.config
        if "Struct:RotaryEncoding" in outline.modules.values() or self.kind in table()["rotates halves"]:
            return True
        if any(key.startswith(("rope", "rotary")) and value is not None for key, value in config.items()):
            return True
        names = [*self.source, *self.side.shapes, *outline.modules]
        words = {word for name in names for word in meaning(name)}
        if any(word.startswith(("rope", "rotary", "rot", "inv freq")) for word in words):
            return True
        is_language_model = {"token", "embedding", "ffn"} <= words
        return not self.kind and is_language_model and not any("position" in word for word in words)

    @property
    def _rotates_a_part(self) -> bool:
        settings = {**self.config, **(self.config.get("rope_parameters") or {})}
        shares = (settings.get(key) for key in ("partial_rotary_factor", "rotary_pct", "rotary_percentage"))
        return any(share not in (None, 1, 1.0) for share in shares) or settings.get("rotary_dim") is not None

    def _without_gaps(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows without parts of tensors of which other parts found no place."""
        covered: dict[str, int] = {}
        for row in rows:
            if row.cut is not None:
                covered[row.sources[0]] = covered.get(row.sources[0], 0) + row.cut[2] - row.cut[1]
        kept = []
        for row in rows:
            name = row.sources[0]
            if row.cut is None or covered[name] == self.source[name].shape[row.cut[0]]:
                kept.append(row)
            else:
                why = "the source has other parts, which found no place"
                self.questions.append(Question((row.target,), (name,), why))
        return kept

    def _ask_for_rope(self, rows: Sequence[Row]) -> bool:
        """Ask for the order of rotary features, which no name or shape shows; return whether it is open."""
        names = [row.target for row in rows if _is_attention_input(row.target)]
        if not names or not self._rotates:
            return False
        if self._rotates_a_part:
            why = "the source rotates only a part of each head, and a RotaryEncoding rotates whole heads"
            self.questions.append(Question(tuple(names[:1]), (), why))
            return True
        if self.rope is not None:
            return False
        why = "queries and keys may be rotated: state the order of the source's rotary features"
        if self.kind in table()["rotates halves"]:
            why += f" (Hugging Face's {self.kind} rotates halves, Burn's RotaryEncoding pairs)"
        self.questions.append(Question(tuple(names[:1]), ("rope=halves", "rope=pairs"), why))
        return True

    def _likely_rotated(self, asked: set[tuple[str, ...]]) -> list[Row]:
        """Return the queries and keys in the likeliest order, for rules that are suggested."""
        if self.kind not in table()["rotates halves"] or self._rotates_a_part:
            return []
        known, self.rope = list(self.questions), "halves"
        rows = [row for row in self._rows(self.alignment.pairs) if row.sources in asked and row.cut is None]
        self.questions, self.rope = known, None
        return rows

    def _tie(self, rows: Sequence[Row]) -> None:
        """Tie a head that the source leaves out to the embedding, where only one fits and config.json allows it."""
        left = []
        for unit, around in self.alignment.targets:
            part = unit.tensors.get("weight") if unit.kind == "Linear" and len(unit.tensors) == 1 else None
            fitting = [] if part is None else self._embeddings(part, unit, rows)
            if part is None or len(fitting) != 1 or self.config.get("tie_word_embeddings") is False:
                left.append((unit, around))
            elif not self.kind:  # it may be lost as well
                why = "the source has no such tensor, and no config.json states whether it is tied"
                self.questions.append(Question(part.names, (f"tie = true, source = {fitting[0]}",), why))
            else:
                steps = (("transpose", True),) if unit.is_transposed else ()
                self.ties.append(Row((fitting[0],), part.names[0], None, steps, "tied to the embedding"))
        self.alignment.targets = left

    def _embeddings(self, part: Part, unit: Unit, rows: Sequence[Row]) -> list[str]:
        if not any(word in meaning(unit.shown) for word in ("head", "output", "vocab", "embedding")):
            return []
        wanted = part.shape[::-1] if unit.is_transposed else part.shape
        kinds = {each.tensors["weight"].names[0] for each in self.side.units if each.kind == "Embedding"}
        return [
            row.sources[0]
            for row in rows
            if row.target in kinds and self.source[row.sources[0]].shape == wanted and wanted[0] != wanted[1]
        ]


def _is_attention_input(target: str) -> bool:
    words = meaning(target.rpartition(".")[0])
    return ("query" in words or "key" in words) and "cross" not in words
