"""The settings of a PEFT adapter, read from its ``adapter_config.json``: each is known, or the adapter is refused.

The file is a stranger's. Its patterns are matched in linear time, by a small set of forms that real adapters use; no
regular expression of the file is ever run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import ConfigError, FormatError, MergeError, printable
from ...io.documents import Bounds, read_json
from ...io.opening import read_whole
from ...io.paths import join

CONFIG = "adapter_config.json"
_BOUNDS = Bounds(constants=True)
_WITH_PEFT = "merge it with peft"

# What does not change the product of the two matrices, or is read here. Everything else must be absent, false or empty.
_KNOWN = frozenset(
    (
        *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
        *("inference_mode", "r", "lora_alpha", "lora_dropout", "use_rslora", "fan_in_fan_out", "bias"),
        *("target_modules", "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern"),
        *("rank_pattern", "alpha_pattern", "init_lora_weights", "megatron_core", "qalora_group_size"),
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"),
    )
)
_REASONS = {
    "use_dora": "DoRA scales each column by a learned magnitude",
    "lora_bias": "it has biases of its own",
    "layer_replication": "it replicates layers of the base",
    "target_parameters": "it targets parameters that are not those of a module",
    "trainable_token_indices": "it trains single rows of an embedding",
    "alora_invocation_tokens": "it is active for some tokens only",
    "use_qalora": "it is quantization-aware",
    "ensure_weight_tying": "one pair of matrices stands for several tied modules",
}
# The inits that leave the base unchanged: peft subtracts the start from the base for all others.
_STARTS = ("gaussian", "eva", "orthogonal", "mica")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """What an adapter states about its modules."""

    rank: int = 8
    alpha: float = 8.0
    rank_stabilized: bool = False
    fan_in_fan_out: bool = False
    ranks: Mapping[str, float] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    targets: Sequence[str] | str | None = None
    excluded: Sequence[str] | str | None = None
    layers: Sequence[int] | None = None
    layers_patterns: Sequence[str] = ()
    matcher: Matcher = field(default_factory=lambda: Matcher(), repr=False)

    def rank_of(self, module: str) -> int:
        """Return the rank that a module must have."""
        return int(self._value_for(self.ranks, module, self.rank, "rank_pattern"))

    def scale_of(self, module: str, rank: int) -> float:
        """Return the factor of a module's product."""
        alpha = self._value_for(self.alphas, module, self.alpha, "alpha_pattern")
        return alpha / (math.sqrt(rank) if self.rank_stabilized else rank)

    def _value_for(self, patterns: Mapping[str, float], module: str, default: float, key: str) -> float:
        """Return the value of the first pattern that a module's name ends with, as peft chooses it."""
        matches = (value for pattern, value in patterns.items() if self.matcher.ends_with(module, pattern, key))
        return next(matches, default)

    def _layer_of(self, module: str) -> int | None:
        """Return the number of the layer that a module is in, as peft finds it: the first number behind a name."""
        parts = module.split(".")
        for pattern in self.layers_patterns or (None,):
            for at in range(2 if pattern is None else 1, len(parts) - 1):
                is_number = parts[at].isdecimal() and parts[at].isascii() and len(parts[at]) < 10
                before = ".".join(parts[:at])
                if is_number and (pattern is None or self.matcher.ends_with(before, pattern, "layers_pattern")):
                    return int(parts[at])
        return None

    def check_target(self, module: str) -> None:
        """Raise MergeError for a module that peft would not adapt, so that it would ignore the module's matrices."""
        if isinstance(self.excluded, tuple) and _is_named(self.excluded, module):
            raise MergeError("exclude_modules names this module, and the adapter has matrices for it", tensor=module)
        if not isinstance(self.targets, tuple):
            return
        is_target = _is_named(self.targets, module)
        if is_target and module not in self.targets and self.layers is not None:
            is_target = self._layer_of(module) in self.layers
        if not is_target:
            raise MergeError(
                "target_modules and layers_to_transform do not name this module, and the adapter has matrices for it: "
                "peft would ignore them",
                tensor=module,
                hint=f"check {CONFIG}; the adapter may be of another model",
            )

    def notes(self) -> Iterator[str]:
        """Yield what was not checked."""
        if isinstance(self.targets, str) and self.targets != "all-linear":
            yield (
                f"target_modules is the pattern {printable(self.targets)!r}, which is not run: every module for which "
                "the adapter has matrices is changed"
            )
        if isinstance(self.excluded, str) and self.excluded:
            yield f"exclude_modules is the pattern {printable(self.excluded)!r}, which is not run"


def read_config(folder: str) -> LoraConfig:
    """Read the settings in a folder; MergeError if an adapter with these cannot be folded exactly."""
    try:
        raw = read_whole(join(folder, CONFIG), _BOUNDS.nbytes)
        config = read_json(raw, _BOUNDS, into=dict[str, Any])
    except FileNotFoundError:
        hint = "pass the base first, then the folders of adapters"
        raise MergeError(f"no {CONFIG} in the adapter's folder", hint=hint) from None
    except (FormatError, ConfigError) as error:
        raise MergeError(f"{CONFIG} is not a JSON object: {error.message}") from None
    _check_kind(config)
    layers = config.get("layers_to_transform")
    return LoraConfig(
        rank=int(_number(config.get("r", 8), "r", whole=True)),
        alpha=_number(config.get("lora_alpha", 8), "lora_alpha"),
        rank_stabilized=_flag(config, "use_rslora"),
        fan_in_fan_out=_flag(config, "fan_in_fan_out"),
        ranks=_patterns(config, "rank_pattern", whole=True),
        alphas=_patterns(config, "alpha_pattern"),
        targets=_names(config, "target_modules"),
        excluded=_names(config, "exclude_modules") or None,
        layers=None if layers is None or layers == [] else _integers(layers, "layers_to_transform"),
        layers_patterns=_plain_names(config, "layers_pattern"),
    )


def _check_kind(config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise MergeError(f"expected peft_type LORA, found {_shown(kind)}", hint=_WITH_PEFT)
    for key, value in config.items():
        if value and key not in _KNOWN:
            what = _REASONS.get(key, "burnstore does not know this setting, which may change what the adapter adds")
            hint = _WITH_PEFT
            if key not in _REASONS:
                hint += f"; if the setting changes nothing, remove it from {CONFIG}"
            raise MergeError(f"{printable(str(key))} is set: {what}; cannot fold it", hint=hint)
    start = config.get("init_lora_weights", True)
    if start is not None and not isinstance(start, bool) and str(start).lower() not in _STARTS:
        raise MergeError(
            f"init_lora_weights={_shown(start)} changes the base when training starts, so the base alone is not enough",
            hint=f"{_WITH_PEFT}, or convert the adapter with peft's path_initial_model_for_weight_conversion",
        )


def _shown(value: Any) -> str:
    return printable(repr(value)[:80])


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise MergeError(f"{key} must be true or false, found {_shown(value)}")


def _number(value: Any, key: str, *, whole: bool = False) -> float:
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) < 1 << 53 or (whole and value < 1):
        raise MergeError(f"{key} must be a {'whole number from 1 on' if whole else 'number'}, found {_shown(value)}")
    return value if whole else float(value)


def _patterns(config: Mapping[str, Any], key: str, *, whole: bool = False) -> dict[str, float]:
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise MergeError(f"{key} must map names of modules to numbers, found {_shown(value)}")
    return {name: _number(number, key, whole=whole) for name, number in value.items()}


def _names(config: Mapping[str, Any], key: str) -> tuple[str, ...] | str | None:
    value = config.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise MergeError(f"{key} must be a list of names, found {_shown(value)}")


def _plain_names(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = _names(config, key)
    return () if not value else (value,) if isinstance(value, str) else value


def _integers(value: Any, key: str) -> tuple[int, ...]:
    several = value if isinstance(value, list) else [value]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in several):
        raise MergeError(f"{key} must be a list of whole numbers, found {_shown(value)}")
    return tuple(several)


def _is_named(names: Sequence[str], module: str) -> bool:
    return module in names or any(module.endswith(f".{name}") for name in names)


# --- patterns in linear time ------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """One step of a pattern: the characters it accepts (None: all) or rejects, and whether it repeats."""

    accepts: frozenset[str] | None
    rejects: frozenset[str] = frozenset()
    repeats: str = ""
    """Empty, ``*`` or ``+``."""

    def goes_on(self, character: str) -> bool:
        return character not in self.rejects and (self.accepts is None or character in self.accepts)


_DIGITS = frozenset("0123456789")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_TOKEN = re.compile(
    r"(?P<any>\.)|(?P<digits>\\d|\[0-9\])|(?P<word>\\w)|(?P<part>\[\^\\?\.\])"
    r"|\\(?P<escaped>[^A-Za-z0-9])|(?P<plain>[A-Za-z0-9_\-/ :])"
)
_PLAIN = re.compile(r"[A-Za-z0-9_\-/ :.]+")
_MOST_WORK = 10_000_000
_Alternative = list[_Step]
_Sequence = list[list[_Alternative]]
"""Groups in order; each has one alternative or several."""


class Matcher:
    """Match names with patterns of a file; all matches together do a bounded amount of work."""

    def __init__(self, most_work: int = _MOST_WORK) -> None:
        self._left = most_work
        self._parsed: dict[str, list[tuple[bool, _Sequence]]] = {}

    def ends_with(self, name: str, pattern: str, key: str) -> bool:
        r"""Return whether a name, or its end from a dot on, matches a pattern as a whole; ``key`` is for messages.

        >>> Matcher().ends_with("model.layers.11.v_proj", r"layers\.\d+\.(q|v)_proj", "rank_pattern")
        True
        >>> Matcher().ends_with("model.q_proj", "proj", "rank_pattern")
        False
        """
        self._work(1, pattern, key)
        if _PLAIN.fullmatch(pattern):  # A dot stands for any character.
            begin = len(name) - len(pattern)
            if begin < 0 or (begin and name[begin - 1] != ".") or pattern[-1] not in (name[-1], "."):
                return False
            self._work(len(pattern), pattern, key)
            return all(sign in (wanted, ".") for wanted, sign in zip(name[begin:], pattern, strict=True))
        choices = self._parsed.get(pattern)
        if choices is None:
            self._work(len(pattern), pattern, key)
            choices = self._parsed[pattern] = list(_parse(pattern, key))
        starts = {0, *(at + 1 for at, sign in enumerate(name) if sign == ".")}
        self._work(len(name), pattern, key)
        for is_anchored, groups in choices:
            places = {0} if is_anchored else starts
            for group in groups:
                places = set().union(*(self._advance(steps, name, places, pattern, key) for steps in group))
            if len(name) in places:
                return True
        return False

    def _advance(self, steps: _Alternative, name: str, places: set[int], pattern: str, key: str) -> set[int]:
        """Return where the steps may end if they begin at these places."""
        for step in steps:
            if not places:
                return places
            once = {at + 1 for at in places if at < len(name) and step.goes_on(name[at])}
            self._work(len(places), pattern, key)
            if step.repeats:
                once = once if step.repeats == "+" else places | once
                first = min(once, default=len(name))
                self._work(len(name) - first, pattern, key)
                for at in range(first, len(name)):
                    if at in once and step.goes_on(name[at]):
                        once.add(at + 1)
            places = once
        return places

    def _work(self, amount: int, pattern: str, key: str) -> None:
        self._left -= amount
        if self._left < 0:
            raise MergeError(
                f"{key} has too many patterns, or too long ones, such as {printable(pattern[:80])!r}", hint=_WITH_PEFT
            )


def _parse(pattern: str, key: str) -> Iterator[tuple[bool, _Sequence]]:
    """Yield the alternatives of a pattern: whether it begins at the first character, and its groups."""
    for choice in _split(pattern, key):
        text = choice.removeprefix("^")
        if text.endswith("$") and not text.endswith("\\$"):
            text = text[:-1]
        yield choice.startswith("^"), _groups(text, pattern, key)


def _split(pattern: str, key: str) -> list[str]:
    """Return the alternatives of a pattern that are not in a group."""
    parts, depth, begin = [], 0, 0
    for at, sign in enumerate(pattern):
        if sign in "()" and not (at and pattern[at - 1] == "\\"):
            depth += 1 if sign == "(" else -1
            if not 0 <= depth <= 1:
                raise _unknown(pattern, key)
        if sign == "|" and not depth:
            parts.append(pattern[begin:at])
            begin = at + 1
    if depth:
        raise _unknown(pattern, key)
    return [*parts, pattern[begin:]]


def _groups(text: str, pattern: str, key: str) -> _Sequence:
    """Return the groups of a pattern without alternatives outside of them; MergeError for any other form."""
    found: _Sequence = []
    at = 0
    while at < len(text):
        if text[at] == "(":
            end = text.find(")", at)
            inner = text[at + 1 : end].removeprefix("?:")
            if end < 0 or "(" in inner or text[end + 1 : end + 2] in ("*", "+", "?", "{"):
                raise _unknown(pattern, key)
            found.append([_steps(choice, pattern, key) for choice in inner.split("|")])
            at = end + 1
        else:
            end = text.find("(", at)
            end = len(text) if end < 0 else end
            found.append([_steps(text[at:end], pattern, key)])
            at = end
    return found


def _steps(text: str, pattern: str, key: str) -> _Alternative:
    steps: _Alternative = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _unknown(pattern, key)
        at = token.end()
        repeats = text[at : at + 1] if text[at : at + 1] in ("*", "+") else ""
        at += len(repeats)
        if token["any"]:
            step = _Step(None, frozenset("\n"), repeats)
        elif token["part"]:
            step = _Step(None, frozenset("."), repeats)
        elif token["digits"] or token["word"]:
            step = _Step(_DIGITS if token["digits"] else _WORD, repeats=repeats)
        else:
            step = _Step(frozenset(token["escaped"] or token["plain"]), repeats=repeats)
        steps.append(step)
    return steps


def _unknown(pattern: str, key: str) -> MergeError:
    return MergeError(
        f"{key} has the pattern {printable(pattern[:80])!r}, whose form burnstore does not match",
        hint=f"name the modules in {CONFIG}, as in layers.0.q_proj, or {_WITH_PEFT}",
    )
