"""Align: pair the units of a source with those of a Burn model, from the outside in.

Numbered modules are matched first, by the size of each entry; then entry by entry, and at last the layers between them:
by shapes where only one fits, by names where several do, by number where names are the same. A pair that another
assignment could replace at nearly the same price is not made: it becomes a question. A pair that rests on order is
marked: a model that numbers its norms, or fills a list, the other way has the same names and shapes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from .assign import assign
from .units import Run, TargetSide, Unit, natural, pairs_of, source_runs, split_units, with_roles
from .words import likeness, meaning, one_based, table

MARGIN = 0.12
"""How much better than any other an assignment must be to count as decided by names."""

_SAME_SIZE = 0.9


Mark = Literal["", "order", "list"]
"""What a pair rests on besides shapes and names: ``order`` of numbers or fields, or places in a ``list``."""


class Pair(NamedTuple):
    """Two units that belong together, why, and the kind of block they are in: the path around them without numbers."""

    source: Unit
    target: Unit
    evidence: str
    block: str
    mark: Mark = ""


class Question(NamedTuple):
    """Tensors that cannot be decided, and what they may be."""

    targets: tuple[str, ...]
    choices: tuple[str, ...]
    why: str


class _Around(NamedTuple):
    """The modules within which units are paired, and whether they are one of several with a number.

    ``is_by_list``: another entry of the list would fit as well, so that only its place decides.
    """

    source: str = ""
    target: str = ""
    is_block: bool = False
    is_by_list: bool = False


class _Decision(NamedTuple):
    """Two units by their numbers, and why they belong together; ``is_open`` if that is why they may not."""

    one: int
    other: int
    why: str
    mark: Mark = ""
    is_open: bool = False


_ROOT = _Around()


@dataclass(slots=True)
class Alignment:
    """The pairs that were found, the questions, and the units that are left."""

    side: TargetSide
    pairs: list[Pair] = field(default_factory=list)
    late: list[Pair] = field(default_factory=list)
    """Pairs of what was left elsewhere: they count only if nothing is left after them."""

    questions: list[Question] = field(default_factory=list)
    likeliest: list[Pair] = field(default_factory=list)
    """The best of the assignments that a question is about."""

    sources: list[tuple[Unit, _Around]] = field(default_factory=list)
    targets: list[tuple[Unit, _Around]] = field(default_factory=list)
    known: dict[object, list[_Decision]] = field(default_factory=dict)

    def align(self, sources: Sequence[Unit], targets: Sequence[Unit], around: _Around = _ROOT) -> None:
        """Pair units within modules that belong together."""
        if not targets:
            self.sources += [(unit, around) for unit in sources]
            return
        for inside in _matched_modules(sources, targets, around):
            sources, targets = self._align_inside(inside, sources, targets)
        sources = self._gathered(sources, targets, around)
        for run, other, offset in self._matched_runs(sources, targets, around):
            forms = _entry_forms(sources, run), _entry_forms(targets, other)
            counts = [Counter(each) for each in forms]
            for at, form in enumerate(forms[1]):
                is_alike = counts[0][forms[0][at + offset]] > 1 or counts[1][form] > 1
                is_by_list = around.is_by_list or is_alike
                inside = _Around(run.entry(at + offset), other.entry(at), True, is_by_list)
                sources, targets = self._align_inside(inside, sources, targets)
        self._pair(sources, targets, around)

    def _align_inside(
        self, inside: _Around, sources: Sequence[Unit], targets: Sequence[Unit]
    ) -> tuple[list[Unit], list[Unit]]:
        """Pair the units within two modules; return those that are not in them."""
        ones, others = _below(sources, inside.source), _below(targets, inside.target)
        self.align(ones, others, inside)
        taken = {id(unit) for unit in (*ones, *others)}
        return [unit for unit in sources if id(unit) not in taken], [unit for unit in targets if id(unit) not in taken]

    # --- numbered modules

    def _runs(self, around: _Around) -> list[Run]:
        inside = [run for run in self.side.runs if _is_below(run.entry(0), around.target)]
        return [run for run in inside if not any(other.holds(run) for other in inside)]

    def _gathered(self, sources: Sequence[Unit], targets: Sequence[Unit], around: _Around) -> Sequence[Unit]:
        """Return lists side by side (``norm.0``, ``block.0``) as one list, where the model has one of their size."""
        wanted = [_sizes(targets, run) for run in self._runs(around)]
        lists: dict[tuple[str, tuple[int, ...]], list[Run]] = {}
        for run in source_runs(sources, around.source):
            owner, _, name = run.path.rpartition(".")
            if name and not (run.stem or name.isdecimal()):
                lists.setdefault((owner, run.numbers), []).append(run)
        for (owner, _), members in lists.items():
            sizes = [_sizes(sources, run) for run in members]
            if len(members) > 1 and list(map(sum, zip(*sizes, strict=True))) in wanted:
                moved = []
                for unit in sources:
                    if any(_is_below(unit.path, run.path) for run in members):
                        name, number, *rest = unit.path[len(owner) + 1 if owner else 0 :].split(".")
                        path = ".".join([*([owner] if owner else []), number, name, *rest])
                        unit = replace(unit, path=path, shown=path)
                    moved.append(unit)
                sources = moved
        return sources

    def _matched_runs(
        self, sources: Sequence[Unit], targets: Sequence[Unit], around: _Around
    ) -> list[tuple[Run, Run, int]]:
        runs = self._runs(around)
        given = [(run, offset) for run in source_runs(sources, around.source) for offset in range(len(run.numbers))]
        sizes = {run: _sizes(targets, run) for run in runs}
        own = {run: _sizes(sources, run) for run, _ in given}
        fitting: dict[tuple[int, int], float] = {}
        for at, (run, offset) in enumerate(given):
            for row, wanted in enumerate(runs):
                found = own[run][offset : offset + len(wanted.numbers)]
                least = _SAME_SIZE if len(run.numbers) == len(wanted.numbers) else 0.999
                if len(found) == len(wanted.numbers) and all(
                    min(pair) >= least * max(pair) for pair in zip(found, sizes[wanted], strict=True)
                ):
                    path = self.side.shown.get(wanted.path, wanted.path)
                    names = meaning(f"{run.path}.{run.stem}"), meaning(f"{path}.{wanted.stem}")
                    rarity = dict.fromkeys((*names[0], *names[1]), 1.0)
                    fitting[at, row] = likeness(*names, rarity)
        decided = [pair for pair in assign(fitting) if pair.margin >= MARGIN]
        return [(given[pair.one][0], runs[pair.other], given[pair.one][1]) for pair in decided]

    # --- the units between them

    def _pair(
        self, sources: Sequence[Unit], targets: Sequence[Unit], around: _Around, *, is_last: bool = False
    ) -> None:
        sources = split_units(sources, targets)
        above = self.side.shown.get(around.target, around.target)
        source_paths = with_roles(sources, around.source)
        target_paths = [unit.below(above) for unit in targets]
        key = tuple(source_paths), tuple(target_paths), tuple(map(_shapes, (*sources, *targets)))
        if key not in self.known or is_last:
            paths = [*one_based(source_paths), *one_based(target_paths)]
            sections = _sections(paths) if around.is_block else ()
            words = [meaning(path, sections=sections, is_flat=is_last) for path in paths]
            for at, unit in enumerate(targets, len(sources)):
                if unit.kind == "Embedding":  # whatever its name
                    words[at] = {word: held for word, held in words[at].items() if word != "head"} | {"embedding": 1.0}
            plain = [meaning(path, sections=sections, is_flat=is_last, with_numbers=False) for path in paths]
            self.known[key] = _decide_twice(sources, targets, words, plain)
        block = re.sub(r"\d+", "#", around.source)
        used_sources, used_targets = set(), set()
        open_: dict[str, list[tuple[int, int]]] = {}
        for one, other, why, mark, is_open in self.known[key]:
            used_sources.add(one)
            used_targets.add(other)
            if is_open:
                open_.setdefault(why, []).append((one, other))
                self.likeliest.append(Pair(sources[one], targets[other], "", block))
            else:
                made = self.late if is_last else self.pairs
                mark = mark or ("list" if around.is_by_list else "")
                made.append(Pair(sources[one], targets[other], why, block, mark))
        for why, members in open_.items():
            self.questions.append(
                Question(
                    tuple(targets[other].path for _, other in members),
                    tuple(sources[one].name for one, _ in members),
                    why,
                )
            )
        self.sources += [(unit, around) for at, unit in enumerate(sources) if at not in used_sources]
        self.targets += [(unit, around) for at, unit in enumerate(targets) if at not in used_targets]

    def pair_rest(self) -> None:
        """Pair what is left, wherever it is: layers that one side keeps elsewhere, and single tensors of layers."""
        for broken in (False, True):
            sources = [unit for unit, _ in self.sources]
            targets = [unit for unit, _ in self.targets]
            self.sources, self.targets = [], []
            if broken:
                sources, targets = list(_broken(sources)), list(_broken(targets))
            self._pair(sources, targets, _ROOT, is_last=True)


def _matched_modules(sources: Sequence[Unit], targets: Sequence[Unit], around: _Around) -> list[_Around]:
    """Return the modules of several layers that have one name and one size on both sides, such as an encoder."""
    given, wanted = _modules(sources, around.source), _modules(targets, around.target)
    return [
        _Around(path, other, around.is_block, around.is_by_list)
        for name, (path, size, count) in given.items()
        for other, wanted_size, wanted_count in [wanted.get(name, ("", 0, 0))]
        if size == wanted_size and min(count, wanted_count) > 1 and not name.isdecimal()
    ]


def _modules(units: Sequence[Unit], above: str) -> dict[str, tuple[str, int, int]]:
    """Return the modules below a path by name: their paths, and how many elements and layers they have."""
    found: dict[str, tuple[str, int, int]] = {}
    for unit in units:
        name = unit.path[len(above) + 1 if above else 0 :].partition(".")[0]
        _, size, count = found.get(name, ("", 0, 0))
        found[name] = f"{above}.{name}" if above else name, size + unit.numel, count + 1
    return found


def _decide_twice(
    sources: Sequence[Unit],
    targets: Sequence[Unit],
    words: Sequence[Mapping[str, float]],
    plain: Sequence[Mapping[str, float]],
) -> list[_Decision]:
    """Decide by names, and mark what only the usual meaning of numbers decides (``norm1`` is the attention's).

    ``plain`` has the words without such meanings: equal numbers on both sides still count.
    """
    count = len(sources)
    decided = _decide(sources, targets, words[:count], words[count:])
    if list(words) == list(plain):
        return decided
    without = {pair[:2] for pair in _decide(sources, targets, plain[:count], plain[count:]) if not pair.is_open}
    return [pair if pair.is_open or pair[:2] in without else pair._replace(mark="order") for pair in decided]


def _decide(
    sources: Sequence[Unit],
    targets: Sequence[Unit],
    source_words: Sequence[Mapping[str, float]],
    target_words: Sequence[Mapping[str, float]],
) -> list[_Decision]:
    """Return pairs with the evidence, or with the reason why they are open."""
    rarity = _rarity([*source_words, *target_words])
    fitting: dict[tuple[int, int], float] = {}
    for other, target in enumerate(targets):
        for one, source in enumerate(sources):
            try:
                list(pairs_of(source, target))
            except ValueError:
                continue
            fitting[one, other] = likeness(source_words[one], target_words[other], rarity)
    pairings = assign(fitting)
    partners = dict(pair[:2] for pair in pairings)
    alone = {pair for pair in fitting if pair[0] not in partners or pair[1] not in partners.values()}
    # A pair chosen by elimination would follow from a wrong one: then nothing of its group is decided.
    doubtful = {
        pair.group
        for pair in pairings
        if pair.margin < MARGIN
        or (pair.margin < math.inf and not _stands_out(pair.one, pair.other, fitting))
        or any(  # what has no partner shares as much: perhaps its partner is lost
            source_words[pair.one].keys() & target_words[pair.other].keys()
            <= source_words[one].keys() & target_words[other].keys()
            for one, other in alone
            if pair.one == one or pair.other == other
        )
    }
    found: list[_Decision] = []
    unsure: list[tuple[int, int]] = []
    for one, other, margin, group in pairings:
        shared = sorted(set(source_words[one]) & set(target_words[other]), key=lambda word: (-rarity[word], word))
        if margin == math.inf and group not in doubtful:
            found.append(_Decision(one, other, "only it fits by shape"))
        elif group not in doubtful:
            found.append(_Decision(one, other, f"names: {', '.join(shared[:3])}"))
        else:
            unsure.append((one, other))
    unsure = _in_order(unsure, fitting, source_words)
    beside = list(_beside(found, unsure, sources, targets, fitting))
    ones, others = {pair.one for pair in beside}, {pair.other for pair in beside}
    left = {pair: value for pair, value in fitting.items() if pair[0] not in ones and pair[1] not in others}
    return found + beside + _by_number([pair for pair in unsure if pair in left], sources, targets, left)


_ORDER = MARGIN / 4
"""How much the order of declaration counts among pairs that names do not decide."""


def _in_order(
    unsure: Sequence[tuple[int, int]],
    fitting: Mapping[tuple[int, int], float],
    source_words: Sequence[Mapping[str, float]],
) -> list[tuple[int, int]]:
    """Return the likeliest pairs of what is unsure: names first, then the order on both sides, which authors keep.

    A file that is sorted by name has lost the order of its modules, so roles have the order of usual declarations.
    """
    ones = sorted({one for one, _ in unsure}, key=lambda one: (_usual_place(source_words[one]), one))
    others = sorted({other for _, other in unsure})
    places = [{at: place for place, at in enumerate(side)} for side in (ones, others)]
    count = max(map(len, places), default=1)
    ordered = {
        (one, other): value - _ORDER * (places[0][one] - places[1][other]) ** 2 / count**2
        for (one, other), value in fitting.items()
        if one in places[0] and other in places[1]
    }
    return [(pair.one, pair.other) for pair in assign(ordered)]


def _usual_place(words: Mapping[str, float]) -> int:
    """Return the place of a role in the usual order of declarations; that of no role is the first."""
    places = [place for place, role in enumerate(table()["usual order"], 1) if set(role.split()) <= words.keys()]
    return max(places, default=0)


def _beside(
    found: Sequence[_Decision],
    unsure: Sequence[tuple[int, int]],
    sources: Sequence[Unit],
    targets: Sequence[Unit],
    fitting: Mapping[tuple[int, int], float],
) -> Iterator[_Decision]:
    """Yield pairs of layers that stand beside layers that are decided: the norm of a convolution."""
    near = [_companions(units) for units in (sources, targets)]
    ones, others = {one for one, _ in unsure}, {other for _, other in unsure}
    made: dict[tuple[int, int], tuple[str, Mark]] = {}
    for one, other, *_ in found:
        for mine, is_numbered in near[0][one]:
            for theirs, is_numbered_too in near[1][other]:
                fits = [pair for pair in fitting if pair[0] in ones & mine and pair[1] in others & theirs]
                if len(mine) == len(theirs) and len(fits) == 1:
                    # conv1 and bn1 have only a number in common; a module of their own is more than that.
                    mark: Mark = "order" if is_numbered or is_numbered_too else ""
                    made[fits[0]] = f"beside {targets[other].shown.rpartition('.')[2]}", mark
    for (one, other), (why, mark) in made.items():
        if sum(pair[0] == one or pair[1] == other for pair in made) == 1:
            yield _Decision(one, other, why, mark)


def _companions(units: Sequence[Unit]) -> list[list[tuple[set[int], bool]]]:
    """Return the layers beside each unit: those of its module, and those with its number (``conv3``, ``bn3``; True).

    A number counts only where names are those of their kinds, and a module only if it holds nothing else.
    """
    groups: dict[tuple[str, str], set[int]] = {}
    keys: list[list[tuple[str, str]]] = []
    for at, unit in enumerate(units):
        owner, _, name = unit.shown.rpartition(".")
        weight = unit.tensors.get("weight")
        is_norm = weight is not None and len(weight.shape) == 1
        number = re.fullmatch(r"\D+(\d+)", name)
        own = [(owner, "")] if owner else []
        own += [(owner, number[1])] if number is not None and ("norm" in meaning(name)) == is_norm else []
        keys.append(own)
        for key in own:
            groups.setdefault(key, set()).add(at)
    return [[(groups[key], bool(key[1])) for key in own if 1 < len(groups[key]) < 4] for own in keys]


def _stands_out(one: int, other: int, fitting: Mapping[tuple[int, int], float]) -> bool:
    """Return whether names prefer a pair to every other of its source, or to every other of its target."""
    own = fitting[one, other]
    of_source = max((value for (a, b), value in fitting.items() if a == one and b != other), default=-1.0)
    of_target = max((value for (a, b), value in fitting.items() if b == other and a != one), default=-1.0)
    return own > 0 and own - min(of_source, of_target) >= MARGIN / 2


def _by_number(
    unsure: Sequence[tuple[int, int]],
    sources: Sequence[Unit],
    targets: Sequence[Unit],
    fitting: Mapping[tuple[int, int], float],
) -> list[_Decision]:
    """Decide by order where the names in the source differ in numbers only, and all that is unsure fits all of it."""
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for one, other in unsure:
        partners = tuple(sorted(each for at, each in fitting if at == one))
        groups.setdefault(partners, []).append((one, other))
    found = []
    for partners, members in groups.items():
        ones = sorted((one for one, _ in members), key=lambda at: natural(sources[at].path))
        others = sorted(other for _, other in members)
        if len({re.sub(r"\d+", "#", targets[other].shown) for other in others}) == 1:  # numbers, not declarations
            others.sort(key=lambda at: natural(targets[at].shown))
        names = {re.sub(r"\d+", "#", sources[one].shown) for one in ones}
        is_even = _is_even([[fitting.get((one, other), -1.0) for other in others] for one in ones])
        rivals = {one for one, other in fitting if other in others}  # sources that fit and found no partner count, too
        if len(names) == 1 and is_even and tuple(sorted(others)) == partners and rivals == set(ones):
            found += [_Decision(one, other, "order", "order") for one, other in zip(ones, others, strict=True)]
        else:
            why = "shapes and names fit several ways"
            found += [_Decision(one, other, why, is_open=True) for one, other in members]
    return found


def _is_even(values: Sequence[Sequence[float]]) -> bool:
    """Return whether every assignment of rows to columns has the same sum: names prefer none."""
    return all(
        abs(value - row[0] - first + values[0][0]) < 1e-6
        for row in values
        for value, first in zip(row, values[0], strict=True)
    )


def _sections(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the sections of the table that hold in a block with these names."""
    found = {word for path in paths for word in meaning(path)}
    if "attention" not in found:
        return ()
    if any({"post", "ffn", "norm"} <= meaning(path).keys() for path in paths):
        return ("in blocks with norms after", "in blocks")
    return ("in cross blocks", "in blocks") if {"cross", "norm 3"} <= found else ("in blocks",)


def _rarity(all_words: Sequence[Mapping[str, float]]) -> dict[str, float]:
    counts = Counter(word for words in all_words for word in words)
    return {word: math.log(1 + len(all_words) / count) for word, count in counts.items()}


def _broken(units: Iterable[Unit]) -> Iterable[Unit]:
    for unit in units:
        for leaf, part in unit.tensors.items():
            yield replace(unit, tensors={leaf: part})


def _shapes(unit: Unit) -> tuple[object, ...]:
    return unit.kind, tuple((leaf, part.shape, part.cut) for leaf, part in unit.tensors.items()), unit.has_outputs_last


def _entry_forms(units: Sequence[Unit], run: Run) -> list[tuple[object, ...]]:
    """Return the kinds and shapes of the layers in each entry of a run: entries of one form fit each other's place."""
    forms: dict[str, list[object]] = {run.entry(at): [] for at in range(len(run.numbers))}
    depth = run.path.count(".") + 2 if run.path else 1
    for unit in units:
        entry = ".".join(unit.path.split(".")[:depth])
        if entry in forms:
            forms[entry].append(_shapes(unit)[:2])
    return [tuple(sorted(map(repr, form))) for form in forms.values()]


def _sizes(units: Sequence[Unit], run: Run) -> list[int]:
    """Return the number of elements in each entry of a run."""
    sizes = dict.fromkeys((run.entry(at) for at in range(len(run.numbers))), 0)
    depth = run.path.count(".") + 2 if run.path else 1
    for unit in units:
        entry = ".".join(unit.path.split(".")[:depth])
        if entry in sizes:
            sizes[entry] += unit.numel
    return list(sizes.values())


def _below(units: Sequence[Unit], path: str) -> list[Unit]:
    return [unit for unit in units if _is_below(unit.path, path) or unit.path == path]


def _is_below(path: str, owner: str) -> bool:
    return not owner or path.startswith(f"{owner}.")
