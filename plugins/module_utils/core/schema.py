# SPDX-License-Identifier: BSD-2-Clause
"""What a file may say, declared once: the validator here and the JSON Schema in ``jsonschema.py`` read the same tree.

A specification is made of small frozen objects (``Text``, ``Choice``, ``Section``…). ``check`` walks a marked tree
along it and collects every problem, never only the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Union

from .errors import Problem
from .marked import DECIMAL, FLAG, LIST, MAP, NULL, ODD, TEXT, WHOLE, WORDS, Node, join, walk

#: Stands for "no default": None is a value.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


@dataclass(frozen=True)
class Format:
    """A form that text must have. ``pattern`` is a regular expression that Python and ECMAScript read alike.

    ``diagnose`` sees a text that fails the pattern, or passes it, and returns what is wrong with it, or None.
    ``remedy`` is said beside it.
    """

    name: str
    pattern: str
    words: str
    diagnose: Callable[[str], str | None] | None = None
    remedy: str = ""


@dataclass(frozen=True)
class Text:
    """Text; one line unless ``multiline``. Control characters are refused everywhere."""

    form: Format | None = None
    min_length: int = 1
    max_length: int = 1024
    multiline: bool = False

    def words(self) -> str:
        return self.form.words if self.form else "text" if self.multiline else "text on one line"


@dataclass(frozen=True)
class Choice:
    """One of a few words. ``remedy`` is said where the word given is no near miss of one."""

    values: tuple[str, ...]
    remedy: str = ""

    def words(self) -> str:
        return ", ".join(self.values)


@dataclass(frozen=True)
class Flag:
    """``true`` or ``false``; the other spellings of YAML 1.1 are refused."""

    def words(self) -> str:
        return "true, false"


@dataclass(frozen=True)
class Number:
    """A number between two bounds, both allowed; whole unless ``decimal``. ``remedy`` is said where it is none."""

    minimum: float
    maximum: float
    decimal: bool = False
    remedy: str = ""

    def words(self) -> str:
        bounds = [f"{int(bound)}" if bound == int(bound) else f"{bound:g}" for bound in (self.minimum, self.maximum)]
        return f"{'a number' if self.decimal else 'a whole number'} from {bounds[0]} to {bounds[1]}"


@dataclass(frozen=True)
class ListOf:
    """A list; ``unique`` refuses two equal items."""

    item: Spec
    min_items: int = 0
    max_items: int = 1000
    unique: bool = True

    def words(self) -> str:
        return f"a list of: {self.item.words()}"


@dataclass(frozen=True)
class MapOf:
    """A mapping whose keys are the user's own words of one form."""

    key: Format
    value: Spec
    max_items: int = 200

    def words(self) -> str:
        return f"a mapping from {self.key.words} to {self.value.words()}"


@dataclass(frozen=True)
class Anything:
    """Any plain data (the input of a scripted tool call)."""

    def words(self) -> str:
        return "any text, number, true, false, list or mapping"


@dataclass(frozen=True)
class ByKind:
    """One of several specifications, told apart by the kind of the value."""

    options: tuple[Spec, ...]

    def words(self) -> str:
        return " or ".join(option.words() for option in self.options)


@dataclass(frozen=True)
class Variants:
    """One of several sections, told apart by their keys."""

    options: tuple[Section, ...]

    def words(self) -> str:
        return " or ".join(option.words() for option in self.options)


@dataclass(frozen=True)
class Key:
    """One key of a section. ``default`` is filled in; ``default_words`` says it where it has to be computed."""

    spec: Spec
    doc: str
    required: bool = False
    default: Any = MISSING
    default_words: str = ""


@dataclass(frozen=True)
class When:
    """If the key at ``path`` has one of ``values`` (its default counts), ``needs`` must be there and ``forbids`` not.

    Paths are relative to the section that holds the rule. An empty list counts as absent where it is forbidden.
    """

    path: str
    values: tuple[Any, ...]
    needs: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Section:
    """A mapping with fixed keys. ``always``: filled with its defaults even where the file does not mention it."""

    keys: Mapping[str, Key]
    rules: tuple[When, ...] = ()
    always: bool = False

    def words(self) -> str:
        return "a mapping with " + ", ".join(self.keys)


Spec = Union[Text, Choice, Flag, Number, ListOf, MapOf, Anything, ByKind, Variants, Section]

_KINDS: dict[type, tuple[str, ...]] = {
    Text: (TEXT,),
    Choice: (TEXT,),
    Flag: (FLAG,),
    ListOf: (LIST,),
    MapOf: (MAP,),
    Variants: (MAP,),
    Section: (MAP,),
}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def kinds(spec: Spec) -> tuple[str, ...]:
    """The kinds of value that a specification takes."""
    if isinstance(spec, Number):
        return (WHOLE, DECIMAL) if spec.decimal else (WHOLE,)
    if isinstance(spec, ByKind):
        return tuple(kind for option in spec.options for kind in kinds(option))
    if isinstance(spec, Anything):
        return (TEXT, WHOLE, DECIMAL, FLAG, LIST, MAP)
    return _KINDS[type(spec)]


@dataclass
class Checked:
    """The outcome: plain data without the parts that were wrong, where each key stands, and all problems."""

    file: str
    data: Any = None
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def report(self, node: Node, path: str, message: str, **facts: str | None) -> None:
        """Add a problem at a node. ``facts`` are fields of ``Problem``; ``found`` defaults to the node's value."""
        facts.setdefault("found", node.shown())
        self.problems.append(Problem(message, self.file, node.line, node.column, path or None, **facts))

    def wrong(self, path: str) -> bool:
        """Whether a problem was reported at this key path or below it: rules then say nothing more about it."""
        inside = (path + ".", path + "[")
        return any(problem.key == path or (problem.key or "").startswith(inside) for problem in self.problems)

    def at(self, path: str, message: str, **facts: str | None) -> None:
        """Add a problem at a key path; where the key is absent, at its nearest parent."""
        place = path
        while place and place not in self.marks:
            place = re.sub(r"(\.[^.\[]+|\[\d+\]|^[^.\[]+)\Z", "", place)
        line, column = self.marks.get(place, (1, 1))
        self.problems.append(Problem(message, self.file, line, column, path, **facts))


def check(spec: Section, tree: Node | None, file: str) -> Checked:
    """Validate a whole document. Defaults are filled in; ``problems`` is empty when all is well. Pure."""
    out = Checked(file)
    if tree is None or tree.kind == NULL:
        out.problems.append(Problem("the file is empty", file, 1, 1, allowed=spec.words(), remedy="see the reference"))
        return out
    for path, node in walk(tree):
        out.marks.setdefault(path, (node.line, node.column))
        for fault in node.faults:
            out.report(node, path, fault.message, remedy=fault.remedy)
    data = _value(spec, tree, "", out, spec)
    out.data = fill(spec, {} if data is MISSING else data)
    out.problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
    return out


def _value(spec: Spec, node: Node, path: str, out: Checked, root: Section) -> Any:
    """The plain value of a node, or MISSING when it is wrong (then a problem was added)."""
    if node.kind not in kinds(spec):
        _wrong_kind(spec, node, path, out)
        return MISSING
    if isinstance(spec, ByKind):
        spec = next(option for option in spec.options if node.kind in kinds(option))
    if isinstance(spec, Variants):
        spec = _variant(spec, node)
    if isinstance(spec, Text):
        return _text(spec, node, path, out)
    if isinstance(spec, Choice):
        return _choice(spec, node, path, out)
    if isinstance(spec, Number):
        if not spec.minimum <= node.value <= spec.maximum:
            out.report(node, path, "out of range", allowed=spec.words(), remedy=spec.remedy or None)
            return MISSING
        return node.value
    if isinstance(spec, ListOf):
        return _list(spec, node, path, out, root)
    if isinstance(spec, MapOf):
        return _map_of(spec, node, path, out, root)
    if isinstance(spec, Section):
        return _section(spec, node, path, out, root)
    return _plain(node, path, out) if isinstance(spec, Anything) else node.value


def _variant(spec: Variants, node: Node) -> Section:
    """The section that the keys of a map fit best, near misses included; the first where none does."""
    given = [str(key.value) for key, _ in node.pairs()]

    def fit(option: Section) -> float:
        names = list(option.keys)
        return sum(1.0 if key in names else 0.5 * bool(get_close_matches(key, names, 1, 0.6)) for key in given)

    return max(spec.options, key=fit)


def _wrong_kind(spec: Spec, node: Node, path: str, out: Checked) -> None:
    wanted = kinds(spec)
    words = " or ".join(dict.fromkeys(WORDS[kind] for kind in wanted))
    if node.kind == NULL:
        message, remedy = f"the key has no value; {words} belongs here", "give it a value or remove the key"
    elif node.kind == ODD and FLAG not in wanted and TEXT in wanted:
        message, remedy = f"{words} belongs here, but {node.reason}", f'write it in quotes: "{node.raw}"'
    elif node.kind == ODD:
        message = f"{words} belongs here, but {node.reason}"
        remedy = "write true or false" if FLAG in wanted else "write it in plain decimal digits"
    elif isinstance(spec, ByKind) and any(isinstance(o, ListOf) and node.kind in kinds(o.item) for o in spec.options):
        message, remedy = f"{words} belongs here, not {WORDS[node.kind]}", f"write it as a list: [{node.raw}]"
    elif TEXT in wanted and node.kind in (WHOLE, DECIMAL, FLAG):
        message, remedy = f"{words} belongs here, not {WORDS[node.kind]}", f'write it in quotes: "{node.raw}"'
    else:
        message, remedy = f"{words} belongs here, not {WORDS[node.kind]}", getattr(spec, "remedy", "")
    out.report(node, path, message, allowed=spec.words(), remedy=remedy or None)


def _text(spec: Text, node: Node, path: str, out: Checked) -> Any:
    text: str = node.value
    allowed = spec.words()
    if _CONTROL.search(text) or (not spec.multiline and ("\n" in text or "\t" in text)):
        out.report(node, path, "the text contains a control character", found=repr(text)[:80], allowed=allowed)
    elif len(text) < spec.min_length:
        out.report(node, path, "the text is empty", allowed=allowed, remedy="give it a value or remove the key")
    elif len(text) > spec.max_length:
        out.report(node, path, f"the text is longer than {spec.max_length} characters", allowed=allowed)
    elif spec.form is not None and (wrong := misformed(spec.form, text)) is not None:
        out.report(node, path, wrong, allowed=allowed, remedy=spec.form.remedy or None)
    else:
        return text
    return MISSING


def misformed(form: Format, text: str) -> str | None:
    """What is wrong with a text of this form, or None."""
    wrong = form.diagnose(text) if form.diagnose else None
    if wrong is None and re.fullmatch(form.pattern, text) is None:
        wrong = f"this is not {form.words}"
    return wrong


def _choice(spec: Choice, node: Node, path: str, out: Checked) -> Any:
    if node.value in spec.values:
        return node.value
    near = get_close_matches(node.value.lower(), spec.values, 1, 0.6)
    remedy = f"did you mean {near[0]}?" if near else spec.remedy or None
    out.report(node, path, "unknown value", allowed=spec.words(), remedy=remedy)
    return MISSING


def _list(spec: ListOf, node: Node, path: str, out: Checked, root: Section) -> Any:
    if not spec.min_items <= len(node.items()) <= spec.max_items:
        bound = f"at least {spec.min_items}" if len(node.items()) < spec.min_items else f"at most {spec.max_items}"
        empty = spec.min_items and not node.items()
        remedy = "remove the key or name something" if empty else f"the bound is {bound}: join entries, or name less"
        out.report(node, path, f"the list needs {bound} of them", allowed=spec.words(), remedy=remedy)
        return MISSING
    values: list[Any] = []
    for index, item in enumerate(node.items()):
        before = len(out.problems)
        value = _value(spec.item, item, f"{path}[{index}]", out, root)
        if value is MISSING:
            continue
        if spec.unique and value in values and len(out.problems) == before:
            out.report(item, f"{path}[{index}]", "listed twice", remedy="remove one of the two")
        else:
            values.append(value)
    return values


def _keys(node: Node, path: str, out: Checked) -> list[tuple[str, Node, Node]]:
    """The pairs of a map under their key as text; anything else as a key, and duplicates, are reported."""
    seen: dict[str, int] = {}
    pairs = []
    for key, value in node.pairs():
        if key.kind != TEXT:
            out.report(key, path, "a key must be text", remedy="write it in quotes" if key.raw else None)
        elif key.value in seen:
            remedy = "keep one of the two"
            out.report(
                key, join(path, key.value), f"the key is given twice (first in line {seen[key.value]})", remedy=remedy
            )
        else:
            seen[key.value] = key.line
            pairs.append((key.value, key, value))
    return pairs


def _map_of(spec: MapOf, node: Node, path: str, out: Checked, root: Section) -> Any:
    if len(node.pairs()) > spec.max_items:
        out.report(node, path, f"more than {spec.max_items} entries")
        return MISSING
    values: dict[str, Any] = {}
    for name, key, child in _keys(node, path, out):
        wrong = misformed(spec.key, name)
        if wrong is not None:
            out.report(key, join(path, name), wrong, allowed=spec.key.words)
            continue
        value = _value(spec.value, child, join(path, name), out, root)
        if value is not MISSING:
            values[name] = value
    return values


def _plain(node: Node, path: str, out: Checked) -> Any:
    """A node as plain data, whatever it holds; ``odd`` scalars are refused here too."""
    if node.kind == MAP:
        return {name: _plain(value, join(path, name), out) for name, _, value in _keys(node, path, out)}
    if node.kind == LIST:
        return [_plain(item, f"{path}[{index}]", out) for index, item in enumerate(node.items())]
    if node.kind == ODD:
        _wrong_kind(Anything(), node, path, out)
    return node.value


def _section(spec: Section, node: Node, path: str, out: Checked, root: Section) -> dict[str, Any]:
    values: dict[str, Any] = {}
    given = set()
    for name, key, child in _keys(node, path, out):
        given.add(name)
        if name not in spec.keys:
            _unknown(spec, key, join(path, name), out, root)
            continue
        value = _value(spec.keys[name].spec, child, join(path, name), out, root)
        if value is not MISSING:
            values[name] = value
    for name, declared in spec.keys.items():
        if declared.required and name not in given:
            out.report(node, join(path, name), "the key is missing", found=None, allowed=declared.spec.words())
    for rule in spec.rules:
        _apply(rule, spec, node, path, out)
    return values


def _unknown(spec: Section, key: Node, path: str, out: Checked, root: Section) -> None:
    near = get_close_matches(key.value.lower().replace("-", "_"), list(spec.keys), 1, 0.6)
    remedy = f"did you mean {near[0]}?" if near else None
    if remedy is None:
        places = [place for place in leaves(root) if re.sub(r"\[\]", "", place).rsplit(".", 1)[-1] == key.value]
        remedy = f"the key belongs at {' or '.join(places)}" if places else "remove it"
    out.report(key, path, "unknown key", found=key.shown(), allowed=", ".join(spec.keys), remedy=remedy)


def leaves(spec: Spec, path: str = "") -> dict[str, Key]:
    """Every key that a specification declares, by its path (``network.allow[].cidr``)."""
    if isinstance(spec, ListOf):
        return leaves(spec.item, f"{path}[]")
    if isinstance(spec, (ByKind, Variants)):
        return {name: key for option in spec.options for name, key in leaves(option, path).items()}
    found: dict[str, Key] = {}
    if isinstance(spec, Section):
        for name, key in spec.keys.items():
            place = join(path, name)
            found[place] = key
            found.update(leaves(key.spec, place))
    return found


# --- rules -----------------------------------------------------------------------------------------------------


def find(node: Node | None, path: str) -> Node | None:
    """The node at a dotted path below ``node``; None where a step is missing."""
    for step in path.split("."):
        if node is None:
            return None
        node = next((value for key, value in node.pairs() if key.value == step), None)
    return node


def default_of(spec: Spec, path: str) -> Any:
    """The declared default of the key at a dotted path, or MISSING."""
    default = MISSING
    for step in path.split("."):
        if not isinstance(spec, Section) or step not in spec.keys:
            return MISSING
        default, spec = spec.keys[step].default, spec.keys[step].spec
    return default


def _apply(rule: When, spec: Section, node: Node, path: str, out: Checked) -> None:
    decides = find(node, rule.path)
    value = default_of(spec, rule.path) if decides is None else decides.value
    if decides is not None and decides.kind in (MAP, LIST):
        return
    if value not in rule.values:
        return
    why = f"{join(path, rule.path) if path else rule.path} is {str(value).lower()}"
    place = path + "." if path else ""
    for needed in rule.needs:
        if find(node, needed) is None:
            out.report(
                decides or node, place + needed, f"the key is missing: {why}", found=None, remedy=rule.why or None
            )
    for forbidden in rule.forbids:
        there = find(node, forbidden)
        if there is not None and not (there.kind == LIST and not there.value):
            out.report(there, place + forbidden, f"the key has no meaning here: {why}", remedy=rule.why or None)


def fill(spec: Spec, data: Any) -> Any:
    """A copy of plain data with the declared defaults filled in, sections marked ``always`` included."""
    if isinstance(spec, ListOf) and isinstance(data, list):
        return [fill(spec.item, item) for item in data]
    if isinstance(spec, ByKind):
        chosen = [option for option in spec.options if _takes(option, data)]
        return fill(chosen[0], data) if chosen else data
    if not isinstance(spec, Section) or not isinstance(data, dict):
        return data
    filled = dict(data)
    for name, key in spec.keys.items():
        if name in filled:
            filled[name] = fill(key.spec, filled[name])
        elif key.default is not MISSING:
            filled[name] = key.default
        elif isinstance(key.spec, Section) and key.spec.always:
            filled[name] = fill(key.spec, {})
    return filled


def _takes(spec: Spec, data: Any) -> bool:
    wanted = MAP if isinstance(data, dict) else LIST if isinstance(data, list) else TEXT
    return wanted in kinds(spec)
