"""What is wrong with a call's arguments, in one text that is enough to send them right.

First the errors. Where names or structure are unknown to whoever sent the call, the shape follows
of the smallest part that holds those errors; whichever is shorter and leaves nothing unknown.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from toolpool.contract.schema.explain import TOO_LONG
from toolpool.contract.schema.parts import Part, around, smallest, way_to
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.shape import Shapes
from toolpool.dispatcher.words import paths
from toolpool.dispatcher.words.paths import cut_at
from toolpool.dispatcher.words.problems import Line, lines_of
from toolpool.dispatcher.words.wording import Wording

_MULTILINE = frozenset({"numbered", "pointer"})
_SEPARATE_PARTS = 3
_SHORTEST_SHAPE = 80
_SHORTEST_LINE = 60
_ABOUT_THE_FIELDS = frozenset({"additionalProperties", "propertyNames", "schema"})


@dataclass(frozen=True, slots=True)
class Rejection:
    """One rejection. `shapes` are the schema's, `hidden` the fields that no model is told of."""

    problems: Sequence[Problem]
    wording: Wording
    shapes: Shapes | None = None
    hidden: Collection[str] = ()

    def text(self) -> str:
        """What the model reads."""
        caps = self.wording.caps
        lines = self._lines()
        listed = self._laid_out(lines)
        unknown = self._unknown(lines)
        if not unknown and len(listed) <= caps.characters:
            return listed
        far = [p for p in self.problems if self._is_far(p)]
        if self.shapes is None or not far:
            has_lists = any(p.kind in ("enum", "const") for p in self.problems)
            return self._fitted(lines, caps.shape_characters if has_lists else caps.characters)
        shaped = self._shaped(self.shapes, far)
        if not unknown and len(listed) <= min(len(shaped), caps.shape_characters):
            return listed
        return shaped

    def _is_far(self, problem: Problem) -> bool:
        """Whether the shape of a part says more about a problem than its line can."""
        return bool(problem.place) or problem.kind in _ABOUT_THE_FIELDS or problem.kind == "required"

    def _unknown(self, lines: Sequence[Line]) -> list[Problem]:
        """The problems that the lines alone do not tell how to put right."""
        told = {id(p) for line in lines[: self.wording.caps.errors] for p in line.problems}
        said_elsewhere = {id(p) for p in self.problems} - {id(p) for n in lines for p in n.problems}
        return [
            problem
            for problem in self.problems
            if self.shapes is not None
            and (self._leaves_open(problem) or id(problem) not in told)
            and id(problem) not in said_elsewhere
        ]

    def _leaves_open(self, problem: Problem) -> bool:
        """Whether the line about a problem does not tell all that it takes to put it right."""
        if problem.is_optional:
            return False
        if problem.closest is not None:
            return problem.shape == TOO_LONG
        if problem.kind == "additionalProperties":
            return bool(problem.allowed)
        if problem.kind in _ABOUT_THE_FIELDS or problem.shape == TOO_LONG:
            return True
        return self._is_off(problem)

    def _is_off(self, problem: Problem) -> bool:
        """Whether the problem is inside a union of which no branch is certain."""
        if self.shapes is None or not problem.place:
            return False
        above = problem.kind in ("required", "additionalProperties")
        return len(way_to(problem, self.shapes)[-1][0]) < len(problem.path) - above

    def _shaped(self, shapes: Shapes, far: Sequence[Problem]) -> str:
        """The errors in short, and the shapes of the parts that hold them."""
        caps, best = self.wording.caps, ""
        for parts in self._choices(shapes, far):
            lines = self._lines(self._covered(shapes, parts))
            texts = [shapes.whole(part.node, caps.shape_characters, hidden=self._hidden(part))
                     for part in parts]  # fmt: skip
            if all(text is not None for text in texts):
                text = self._with_shapes(lines, parts, [text.line for text in texts if text])
                best = text if not best or len(text) < len(best) else best
        if caps.characters < len(best) and (less := self._without_known(shapes, far)):
            best = less
        if best and len(best) <= caps.shape_characters:
            return best
        part = around(far, shapes)
        lines = self._lines(self._covered(shapes, [part]))
        errors = self._fitted(lines, caps.characters)
        room = caps.shape_characters - len(self._with_shapes([], [part], [""], errors))
        shape = shapes.shortened(part.node, max(_SHORTEST_SHAPE, room), hidden=self._hidden(part))
        text = self._with_shapes([], [part], [shape.line], errors)
        return cut_at(text, caps.shape_characters)

    def _choices(self, shapes: Shapes, far: Sequence[Problem]) -> list[list[Part]]:
        parts = smallest(far, shapes)
        if len(parts) == 1:
            return [parts]
        together = [around(far, shapes)]
        return [parts, together] if len(parts) <= _SEPARATE_PARTS else [together]

    def _without_known(self, shapes: Shapes, far: Sequence[Problem]) -> str | None:
        """The shape without the fields that were sent right, where that makes it a near miss."""
        parts = smallest(far, shapes)
        if len(parts) > 1 or any(p.kind != "additionalProperties" for p in far):
            return None
        [part] = parts
        known = set(part.node.get("properties", ())) - {n for p in far for n in p.allowed}
        room = self.wording.caps.characters
        shape = shapes.whole(part.node, room, hidden=self._hidden(part), known=known)
        if shape is None:
            return None
        text = self._with_shapes(self._lines(), parts, [shape.line])
        return text if len(text) <= room else None

    def _lines(self, covered: Collection[int] = ()) -> list[Line]:
        """A line for each problem; where they are many or long, one for all that say the same."""
        caps = self.wording.caps
        lines = lines_of(self.problems, self.wording, covered)
        if len(lines) <= caps.errors and len(self._laid_out(lines)) <= caps.characters:
            return lines
        return lines_of(self.problems, self.wording, covered, are_shared=True)

    def _hidden(self, part: Part) -> Collection[str]:
        return self.hidden if () in part.paths else ()

    def _covered(self, shapes: Shapes, parts: Sequence[Part]) -> frozenset[int]:
        """The positions of the problems that are inside one of these parts."""
        shown = {id(part.node) for part in parts}
        return frozenset(
            number
            for number, problem in enumerate(self.problems)
            if any(id(node) in shown for _, node in way_to(problem, shapes))
        )

    def _with_shapes(
        self, lines: Sequence[Line], parts: Sequence[Part], shapes: Sequence[str], errors: str = ""
    ) -> str:
        words, style = self.wording.words, self.wording.style
        pointer = style == "pointer"
        told = []
        for part, shape in zip(parts, shapes, strict=True):
            where = ", ".join(paths.several(part.paths, pointer=pointer))
            told.append(f"{paths.middle_out(where, 80) or words.arguments}: {shape}")
        text = words.shape[style].format(shapes="; ".join(told))
        errors = errors or self._laid_out(lines)
        tail = words.tail[style]
        errors = errors.removesuffix(tail) if tail else errors
        if errors.endswith(("?", "？")):
            text = text.lstrip("。.")
        return errors + text + tail

    def _laid_out(self, lines: Sequence[Line], share: int | None = None) -> str:
        """The lines as the style has them, each at most `share` characters long."""
        words, style = self.wording.words, self.wording.style
        told = lines[: self.wording.caps.errors]
        texts = [line.whole if share is None else line.within(share) for line in told]
        if style == "numbered":
            texts = [f"{number}. {text}" for number, text in enumerate(texts, 1)]
        elif style == "pointer":
            texts = [f"- {text}" for text in texts]
        more = sum(len(line.problems) for line in lines) - sum(len(line.problems) for line in told)
        if more:
            texts.append(words.more.format(count=more))
        body = ("\n" if style in _MULTILINE else "; ").join(texts)
        return words.head[style] + body + words.tail[style]

    def _fitted(self, lines: Sequence[Line], characters: int) -> str:
        """The lines in so much room: what one does not use another may."""
        text = self._laid_out(lines)
        if len(text) <= characters:
            return text
        told = lines[: self.wording.caps.errors]
        room = characters - (len(text) - sum(len(line.whole) for line in told))
        share = room // max(1, len(told))
        for _ in told:
            short = [len(line.whole) for line in told if len(line.whole) <= share]
            if len(short) == len(told):
                break
            share = (room - sum(short)) // (len(told) - len(short))
        text = self._laid_out(lines, max(_SHORTEST_LINE, share))
        return cut_at(text, max(characters, self.wording.caps.shape_characters))
