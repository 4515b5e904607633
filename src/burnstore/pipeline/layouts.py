"""Decide the layout of a source: given, stated by it or by rules, or proved by names or shapes; otherwise refuse.

A guess could silently transpose a matrix. So such a layout counts as proved only if a name or a shape occurs in one of
the two layouts and not in the other, and no tensor contradicts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..errors import ModelError, printable
from ..tensor.data import Shape
from ..tensor.note import Note
from ..tensor.snapshot import TensorSnapshot
from ..transforms.layout import Layout, Link
from ..transforms.view import LayoutView, join
from .ends import Input, Target
from .options import Pipeline

_BURN_NAMES = frozenset({"gamma", "beta", "alpha"})
"""Names of tensors in Burn's modules that have other names in PyTorch."""


def decide_layout(
    source: Input,
    target: Target | None,
    pipeline: Pipeline,
    index: Mapping[str, TensorSnapshot],
    kept: Collection[str] | None,
    notes: list[Note],
) -> tuple[str | None, LayoutView | None]:
    """Return the layout of a source, and the target's view where one was needed to prove it; None if it is unknown.

    ``index`` has the source's tensors by the names that the target knows, ``kept`` the target's paths that the filter
    keeps (None: all). The notes get the proof. ModelError where the layout matters and nothing proves it.
    """
    layout = source.layout_given(pipeline.layout, notes, pipeline.adapter)
    if pipeline.recipe is not None:
        layout = pipeline.recipe.target_layout or layout
    if target is None:
        return layout, None
    notes += target.meets(source, layout)
    if layout is not None or target.layout is None:
        return layout, None
    shapes = {slot.path: slot.shape for slot in target.slots}
    if target.layout == "torch":
        # What is neither loaded nor compared would show a transposed matrix to nothing else.
        ignored = {path: shape for path, shape in shapes.items() if kept is not None and path not in kept}
        check_not_burn(index, shapes, ignored if pipeline.validate else shapes, source.name)
        notes.append(layout_note(source.name, "torch", "PyTorch models are saved so"))
        return "torch", None
    view = target.view(index)
    proved = proved_layout(view, index, shapes, kept, source.name)
    if proved is None:  # no tensor that takes part differs between the layouts, if the kinds are known
        return target.layout if target.states_layout() else None, view
    notes.append(layout_note(source.name, *proved))
    return proved[0], view


def layout_note(name: str, layout: Layout, why: str) -> Note:
    """Return the note on how the layout of a source was decided."""
    framework = "PyTorch" if layout == "torch" else "Burn"
    return Note("layout", f"{printable(name)} does not state its layout: taken as {framework}'s ({why})", name)


def proved_layout(
    view: LayoutView,
    index: Mapping[str, TensorSnapshot],
    shapes: Mapping[str, Shape],
    kept: Collection[str] | None,
    name: str,
) -> tuple[Layout, str] | None:
    """Return the layout of tensors that are to go into a Burn-layout target, and the proof; None if it does not matter.

    ``shapes`` are those of the target, ``kept`` the target's tensors that take part (None: all). ModelError if the
    layout matters and nothing proves it, or proofs contradict each other.
    """
    proofs: dict[Layout, str] = {}
    undecided: list[str] = []
    for module in view.modules:
        if module.kind is None:
            continue
        for link in module.map.links:
            burn, torch = join(module.burn, link.burn), join(module.torch, link.torch)
            found = _proof(link, burn, torch, index, shapes)
            if found is not None:
                proofs.setdefault(*found)
            elif link.transposed and torch in index and (kept is None or burn in kept):
                undecided.append(torch)
    if len(proofs) > 1:
        raise ModelError(
            f"the file does not state its layout, and its tensors contradict each other: {proofs['torch']} as in "
            f"PyTorch, {proofs['burn']} as in Burn",
            path=name,
            hint='pass layout="torch" or layout="burn"',
        )
    for layout, why in proofs.items():
        return layout, why
    if undecided:
        others = f" (and {len(undecided) - 1} more)" if len(undecided) > 1 else ""
        raise ModelError(
            f"the file does not state its layout, and neither names nor shapes prove it: a square matrix{others} is "
            "stored transposed in the other layout",
            path=name,
            tensor=undecided[0],
            hint='pass layout="torch" if PyTorch wrote these tensors, layout="burn" if Burn did',
        )
    return None


def check_not_burn(
    index: Mapping[str, TensorSnapshot], slots: Collection[str], shapes: Mapping[str, Shape], name: str
) -> None:
    """Refuse to read a file as PyTorch's if it is Burn's by a name or a shape.

    The name is one of a norm of the target, such as ``norm.gamma``; the shape is the transpose of a matrix of the
    target, of those in ``shapes``.
    """
    for path in index:
        owner, _, leaf = path.rpartition(".")
        if leaf in _BURN_NAMES:
            weight = join(owner, "weight")
            if weight in slots and weight not in index:
                raise ModelError(
                    "the file does not state its layout, and this name is Burn's: matrices may be transposed",
                    path=name,
                    tensor=path,
                    hint='pass layout="burn" if Burn wrote these tensors, layout="torch" if they only have its names',
                )
        shape = shapes.get(path, ())
        if len(shape) == 2 and shape[0] != shape[1] and index[path].shape == shape[::-1]:
            raise ModelError(
                f"the file does not state its layout, and the shape {list(shape[::-1])} is Burn's: matrices may be "
                "transposed",
                path=name,
                tensor=path,
                hint='pass layout="burn" if Burn wrote these tensors, layout="torch" if PyTorch did',
            )


def _proof(
    link: Link, burn: str, torch: str, index: Mapping[str, TensorSnapshot], shapes: Mapping[str, Shape]
) -> tuple[Layout, str] | None:
    """Return the layout that one tensor proves, and how; None if it proves none."""
    leaf = link.burn.rpartition(".")[2]
    if burn in index and leaf in _BURN_NAMES:
        return "burn", f"{printable(burn)!r} is named"
    if torch != burn:
        if torch in index and burn not in index:
            return "torch", f"{printable(torch)!r} is named"
        if burn in index and torch not in index and link.parts > 1:
            return "burn", f"{printable(burn)!r} is named"
    if link.transposed and link.parts == 1 and burn in index and burn == torch:
        found, wanted = index[burn].shape, shapes.get(burn, ())
        if found == wanted and found[::-1] != found:
            return "burn", f"{printable(burn)!r} is {list(found)}"
        if found == wanted[::-1] and found != wanted:
            return "torch", f"{printable(burn)!r} is {list(found)}"
    return None
