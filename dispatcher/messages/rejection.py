"""The full text about a call's wrong arguments, enough to correct them.

The errors come first. If the model does not know the names or the structure, the shape of the
smallest part with those errors follows. The shortest complete text is used.
"""

from collections.abc import Collection, Sequence
from typing import Any

from toolpool.contract.schema.error_scope import Part, Way, around, smallest, way_to
from toolpool.contract.schema.explain import TOO_LONG
from toolpool.contract.schema.focus import focus_of
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.shape import Shapes
from toolpool.dispatcher.messages import argument_paths
from toolpool.dispatcher.messages.argument_paths import cut_at
from toolpool.dispatcher.messages.problem_lines import Line, lines_of
from toolpool.dispatcher.messages.wording import Wording

_MULTILINE = frozenset({"numbered", "pointer"})
_SEPARATE_PARTS = 3
_SHORTEST_SHAPE = 80
_SHORTEST_LINE = 50
_ABOUT_THE_FIELDS = frozenset({"propertyNames", "schema"})


class Rejection:
    """One rejection. `shapes` are the schema's, `hidden` the fields that no model sees.

    Only the names in `arguments` are used, to find the correct fields; None if the arguments may
    have more errors than `problems`.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        wording: Wording,
        shapes: Shapes | None = None,
        hidden: Collection[str] = (),
        arguments: Any = None,
    ) -> None:
        self.problems = problems
        self.wording = wording
        self.shapes = shapes
        self.hidden = hidden
        self.arguments = arguments
        self._ways = [way_to(problem, shapes.root) for problem in problems] if shapes else []

    def text(self) -> str:
        """The text for the model."""
        caps = self.wording.caps
        far = [
            way
            for problem, way in zip(self.problems, self._ways, strict=False)
            if _leaves_open(problem)
        ]
        lines = self._lines()
        if self.shapes is not None and far:
            return self._shaped(self.shapes, far if len(lines) <= caps.errors else self._ways)
        listed = self._laid_out(lines)
        all_told = len(lines) <= caps.errors or not self.shapes
        if all_told and len(listed) <= caps.characters:
            return listed
        if self.shapes is None or not any(problem.place for problem in self.problems):
            return self._fitted(lines, caps.shape_characters)
        shaped = self._shaped(self.shapes, self._ways)
        limit = min(len(shaped), caps.shape_characters)
        return listed if all_told and len(listed) <= limit else shaped

    def _shaped(self, shapes: Shapes, far: Sequence[Way]) -> str:
        """The errors in brief, and the shapes of the parts at these paths."""
        caps, best = self.wording.caps, ""
        for parts in _choices(far):
            covered = self._covered(parts)
            texts = [shapes.whole(part.node, caps.shape_characters, hidden=self._hidden(part))
                     for part in parts]  # fmt: skip
            if all(text is not None for text in texts):
                whole = [text.line for text in texts if text]
                text = self._with_shapes(self._lines(covered), parts, whole)
                if len(text) > caps.characters:  # not a near miss: the shapes show what is missing
                    text = self._with_shapes(self._lines(covered, is_whole=True), parts, whole)
                best = text if not best or len(text) < len(best) else best
        if caps.characters < len(best) and (less := self._without_known(shapes, far)):
            best = less
        if best and len(best) <= caps.shape_characters:
            return best
        part = around(far)
        lines = self._lines(self._covered([part]))
        if len(self._laid_out(lines)) > caps.characters or len(lines) > caps.errors:
            part = around(self._ways)  # the shape must contain what the errors have no room for
            lines = self._lines(self._covered([part]))
        errors = self._fitted(lines, caps.characters)
        room = caps.shape_characters - len(self._with_shapes([], [part], [""], errors))
        focus = focus_of(self.problems, self._ways, shapes.root, self.arguments)
        shape = shapes.shortened(
            part.node, max(_SHORTEST_SHAPE, room), hidden=self._hidden(part), focus=focus
        )
        if shape.line == TOO_LONG:
            return self._fitted(self._lines(), caps.shape_characters)
        text = self._with_shapes([], [part], [shape.line], errors)
        return cut_at(text, caps.shape_characters)

    def _without_known(self, shapes: Shapes, far: Sequence[Way]) -> str | None:
        """The shape without the correct fields, if that makes it a near miss."""
        parts = smallest(far)
        if len(parts) > 1 or any(
            problem.kind != "additionalProperties" or problem.is_unsure for problem in self.problems
        ):
            return None
        [part] = parts
        absent = {name for problem in self.problems for name in problem.allowed}
        known = set(part.node.get("properties", ())) - absent
        room = self.wording.caps.characters
        shape = shapes.whole(part.node, room, hidden=self._hidden(part), known=known)
        if shape is None:
            return None
        text = self._with_shapes(self._lines(), parts, [shape.line])
        return text if len(text) <= room else None

    def _lines(self, covered: Collection[int] = (), *, is_whole: bool = False) -> list[Line]:
        """A line for each problem.

        If the lines are many or long, problems with the same text share one.
        """
        caps = self.wording.caps
        if covered:
            return lines_of(
                self.problems, self.wording, covered, are_shared=True, is_whole=is_whole
            )
        lines = lines_of(self.problems, self.wording)
        if len(lines) <= caps.errors and len(self._laid_out(lines)) <= caps.characters:
            return lines
        return lines_of(self.problems, self.wording, are_shared=True)

    def _hidden(self, part: Part) -> Collection[str]:
        return self.hidden if () in part.paths else ()

    def _covered(self, parts: Sequence[Part]) -> frozenset[int]:
        """The positions of the problems that are inside one of these parts."""
        shown = {id(part.node) for part in parts}
        return frozenset(
            number
            for number, way in enumerate(self._ways)
            if any(id(node) in shown for _, node in way)
        )

    def _with_shapes(
        self, lines: Sequence[Line], parts: Sequence[Part], shapes: Sequence[str], errors: str = ""
    ) -> str:
        words, style = self.wording.words, self.wording.style
        pointer = style == "pointer"
        told = []
        for part, shape in zip(parts, shapes, strict=True):
            where = ", ".join(argument_paths.several(part.paths, pointer=pointer))
            told.append(f"{argument_paths.middle_out(where, 80) or words.arguments}: {shape}")
        if not lines and not errors:
            return words.shape_alone[style].format(shapes="; ".join(told)) + words.tail[style]
        text = words.shape[style].format(shapes="; ".join(told))
        errors = errors or self._laid_out(lines)
        tail = words.tail[style]
        errors = errors.removesuffix(tail) if tail else errors
        if errors.endswith(("?", "？")):
            text = text.lstrip("。.")
        return errors + text + tail

    def _laid_out(self, lines: Sequence[Line], share: int | None = None, count: int = 0) -> str:
        """The first lines in the style's layout, each at most `share` characters long."""
        words, style = self.wording.words, self.wording.style
        told = lines[: count or self.wording.caps.errors]
        texts = [line.whole if share is None else line.within(share) for line in told]
        if style == "numbered":
            texts = [f"{number}. {text}" for number, text in enumerate(texts, 1)]
        elif style == "pointer":
            texts = [f"- {text}" for text in texts]
        more = sum(line.count for line in lines[len(told) :])
        if more:
            texts.append(words.more.format(count=more))
        body = ("\n" if style in _MULTILINE else "; ").join(texts)
        return words.head[style] + body + words.tail[style]

    def _fitted(self, lines: Sequence[Line], characters: int) -> str:
        """As many lines as fit. Room that one line does not use is left to the others."""
        text = self._laid_out(lines)
        for count in range(min(len(lines), self.wording.caps.errors), 0, -1):
            if len(text) <= characters:
                break
            lengths = [len(line.whole) for line in lines[:count]]
            around_them = len(self._laid_out(lines, count=count)) - sum(lengths)
            share = _fair_share(lengths, characters - around_them)
            if share >= min(_SHORTEST_LINE, max(lengths)) or count == 1:
                text = self._laid_out(lines, max(share, 1), count)
        return cut_at(text, characters)


def _leaves_open(problem: Problem) -> bool:
    """Whether the line about a problem is not enough to correct it."""
    if problem.is_optional:
        return False
    if problem.closest is not None:
        return problem.shape == TOO_LONG
    if problem.is_unsure or problem.kind in _ABOUT_THE_FIELDS or problem.shape == TOO_LONG:
        return True
    return problem.kind == "additionalProperties" and bool(problem.allowed)


def _fair_share(lengths: Sequence[int], room: int) -> int:
    """The longest length for each, with the rest of the short ones shared by the long ones."""
    left = sorted(lengths, reverse=True)
    while left and left[-1] * len(left) <= room:
        room -= left.pop()
    return room // len(left) if left else max(lengths)


def _choices(ways: Sequence[Way]) -> list[list[Part]]:
    """The separate parts, if they are few; and the one that contains them all."""
    parts = smallest(ways)
    if len(parts) == 1:
        return [parts]
    together = [around(ways)]
    return [parts, together] if len(parts) <= _SEPARATE_PARTS else [together]
