# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Expressions of an inventory, worked out once for all hosts that are alike in what they read.

Ansible compiles and evaluates an expression anew for each host. Most of them ask for what few values are there of, such
as a zone: what is read is told from the expression, and an answer counts for each host that has the same there.
"""
from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Set, Tuple

from jinja2 import Environment, TemplateError, nodes

try:
    from ansible.template import is_trusted_as_template as is_trusted
except ImportError:
    # Before ansible-core 2.19, where nobody asks for it
    is_trusted = bool

# Of an expression whose answers are seldom asked for again, nothing more is remembered
TRIED, LONGEST = 500, 5000
# What answers the same when it is asked the same, and changes nothing: Jinja's own but one, Ansible's, and a few more
FILTERS = frozenset({*Environment().filters, "b64decode", "b64encode", "basename", "bool", "combine", "dict2items",
                     "difference", "dirname", "extract", "flatten", "from_json", "hash", "human_readable",
                     "human_to_bytes", "intersect", "items2dict", "mandatory", "md5", "pow", "product", "quote",
                     "regex_escape", "regex_findall", "regex_replace", "regex_search", "root", "sha1", "split",
                     "splitext", "symmetric_difference", "ternary", "to_json", "to_uuid", "type_debug", "union",
                     "unique", "urldecode", "urlsplit", "zip", "json_query"} - {"random"})
TESTS = frozenset({*Environment().tests, "all", "any", "contains", "falsy", "issubset", "issuperset", "match", "nan",
                   "regex", "search", "subset", "superset", "truthy", "version", "version_compare"})
# Those that are given the name of a filter or of a test, after that of an attribute in some
BY_NAME = ("map", "reject", "rejectattr", "select", "selectattr")
METHODS = frozenset({"endswith", "get", "items", "keys", "lower", "partition", "replace", "rpartition", "rsplit",
                     "split", "startswith", "strip", "upper", "values"})
HARMLESS = (nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.CondExpr, nodes.Const, nodes.Compare,
            nodes.Operand, nodes.BinExpr, nodes.UnaryExpr, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair,
            nodes.Keyword, nodes.Slice, nodes.Concat, nodes.Name, nodes.Getattr, nodes.Getitem)
NUMBERS = (bool, int, float, type(None))
SCALARS = (str, *NUMBERS)
# What Ansible takes for a template, in whatever it reads
MARKS = ("{{", "{%", "{#")
OF_ITS_PLACE = re.compile(r"\\\\|\b(?:lookup|query|q)\b")
# The way to a value: the name of a variable, and the keys below it
Path = Tuple[Any, ...]


class RememberingTemplar:
    """A Templar to those who construct an inventory with it; each is of one inventory file."""

    def __init__(self, templar: Any) -> None:
        self._templar = templar
        self._variables: Mapping[str, Any] = {}
        self._known: Dict[Tuple[Any, ...], Optional[_Answers]] = {}
        _compile_once(templar)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._templar, name)

    @property
    def available_variables(self) -> Mapping[str, Any]:
        return self._variables

    @available_variables.setter
    def available_variables(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables

    def template(self, variable: Any, **options: Any) -> Any:
        return self._worked_out("template", variable, options)

    def evaluate_expression(self, expression: Any, **options: Any) -> Any:
        return self._worked_out("evaluate_expression", expression, options)

    def evaluate_conditional(self, conditional: Any) -> Any:
        return self._worked_out("evaluate_conditional", conditional, {})

    def _worked_out(self, method: str, text: Any, options: Dict[str, Any]) -> Any:
        answers = self._answers(method, text, options) if isinstance(text, str) else None
        seen = None if answers is None else answers.seen(self._variables)
        if answers is None or seen is None:
            self._templar.available_variables = self._variables
            return getattr(self._templar, method)(text, **options)
        if answers.is_value and isinstance(seen[0], SCALARS) and is_trusted(text):
            return seen[0]

        def work_out() -> Any:
            # Ansible wraps each variable that it is given, read or not
            self._templar.available_variables = {
                name: self._variables[name] for name in answers.names if name in self._variables}
            return getattr(self._templar, method)(text, **options)

        return answers.answer(seen, work_out)

    def _answers(self, method: str, text: str, options: Mapping[str, Any]) -> Optional[_Answers]:
        key = (method, text, *options.items())
        if key not in self._known:
            template = text if method == "template" else "{{ %s }}" % text
            paths = read_by(template)
            self._known[key] = None if paths is None else _Answers(
                paths, method == "evaluate_expression" and is_path(template))
        return self._known[key]


class _Answers:
    """What an expression came to, by the values that it reads.

    names: of the variables that have them; is_value: whether it is but the way to one value.
    """

    def __init__(self, paths: Iterable[Path], is_value: bool = False) -> None:
        self._paths = sorted(paths, key=str)
        self.names = sorted({path[0] for path in self._paths})
        self.is_value = is_value
        self._found: Dict[Tuple[str, ...], Tuple[Any, Optional[Exception]]] = {}
        self._asked = 0

    def answer(self, seen: Tuple[Any, ...], work_out: Callable[[], Any]) -> Any:
        self._asked += 1
        # One and True are equal, and so are all whose parts are
        key = tuple(map(repr, seen))
        if key not in self._found:
            if len(self._found) > max(TRIED, min(LONGEST, self._asked / 2)):
                return work_out()
            try:
                self._found[key] = (work_out(), None)
            except Exception as error:
                self._found[key] = (None, error)
        found, failure = self._found[key]
        if failure is not None:
            raise failure.with_traceback(None)
        return found if isinstance(found, SCALARS) else copy.deepcopy(found)

    def seen(self, variables: Mapping[str, Any]) -> Optional[Tuple[Any, ...]]:
        """What it reads; None where a text there may be a template, which reads something else."""
        seen: List[Any] = []
        for path in self._paths:
            value: Any = variables
            for depth, key in enumerate(path):
                # Jinja takes an attribute for what has one of the name, as `items` of a dictionary
                if isinstance(key, str) and value is not variables and hasattr(value, key):
                    value = _OfSome(value)
                    break
                try:
                    value = value[key]
                except (KeyError, IndexError, TypeError):
                    value = _Nothing(depth) if isinstance(value, Mapping) else _OfSome(value)
                    break
            if not isinstance(value, NUMBERS):
                text = value if isinstance(value, str) else repr(value)
                if "{" in text and any(mark in text for mark in MARKS):
                    return None
            seen.append(value)
        return tuple(seen)


@dataclass(frozen=True)
class _Nothing:
    """Stands for what a host lacks. depth: how far it has the way to it."""

    depth: int


@dataclass(frozen=True)
class _OfSome:
    """Stands for what is asked of a value that has no such part: an attribute of it, or nothing."""

    value: Any


def is_path(template: str) -> bool:
    """Whether a template is the way to one value, and nothing else."""
    ((output,),) = [node.nodes for node in Environment().parse(template).body if isinstance(node, nodes.Output)]
    return _path(output) is not None


def read_by(template: str) -> Optional[Set[Path]]:
    """What a template reads; None where it may read more than its text says, or do more than read."""
    try:
        tree = Environment().parse(template)
        return set(_read(tree))
    except (TemplateError, _MayBeAnything):
        return None


class _MayBeAnything(Exception):
    """A part of a template whose answer may differ from host to host, whatever it is asked."""


def _read(node: nodes.Node) -> Iterator[Path]:
    path = _path(node)
    if path is not None:
        yield path
        return
    children: Iterable[nodes.Node] = node.iter_child_nodes()
    if isinstance(node, nodes.Call):
        if not isinstance(node.node, nodes.Getattr) or node.node.attr not in METHODS:
            raise _MayBeAnything
        children = [each.node if each is node.node else each for each in children]
    elif isinstance(node, nodes.Filter):
        _refuse_unless_known(node.name, FILTERS)
        place = 1 if node.name.endswith("attr") else 0
        for given in node.args[place:place + 1] if node.name in BY_NAME else ():
            _refuse_unless_known(given.value if isinstance(given, nodes.Const) else "", FILTERS | TESTS)
    elif isinstance(node, nodes.Test):
        _refuse_unless_known(node.name, TESTS)
    elif not isinstance(node, HARMLESS):
        raise _MayBeAnything
    for child in children:
        yield from _read(child)


def _refuse_unless_known(name: Any, known: FrozenSet[str]) -> None:
    """By its name alone, of whatever collection it is."""
    if str(name).rpartition(".")[2] not in known:
        raise _MayBeAnything


def _path(node: nodes.Node) -> Optional[Path]:
    """The way that is written in a node and leads to a value by nothing but names; None where it is something else."""
    if isinstance(node, nodes.Name):
        return (node.name,)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        inner = _path(node.node)
        return None if inner is None else (*inner, node.arg.value)
    if isinstance(node, nodes.Getattr):
        inner = _path(node.node)
        return None if inner is None else (*inner, node.attr)
    return None


def _compile_once(templar: Any) -> None:
    """Have Jinja compile each expression once. Where an Ansible does not let itself be told, it compiles each time."""
    holder = getattr(templar, "_engine", None) if hasattr(templar, "evaluate_expression") else templar
    environment = getattr(holder, "environment", None)
    for name in ("from_string", "compile_expression"):
        if hasattr(environment, name):
            setattr(environment, name, _once(getattr(environment, name)))


def _once(compile_source: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Dict[str, Any] = {}

    def compile_once(source: Any, *arguments: Any, **options: Any) -> Any:
        # A backslash counts in one place and not in another, and a lookup is allowed in one and not in another
        if not isinstance(source, str) or OF_ITS_PLACE.search(source):
            return compile_source(source, *arguments, **options)
        if source not in compiled:
            compiled[source] = compile_source(source, *arguments, **options)
        return compiled[source]

    return compile_once
