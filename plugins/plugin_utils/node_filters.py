# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""JMESPath expressions that pick nodes by their facts: compiled once, before anything is asked of the cluster."""
from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..module_utils.cluster.nodes import node_facts
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.refusal import Refusal

try:
    import jmespath
    import jmespath.exceptions
    import jmespath.functions

    IMPORT_ERROR: Optional[ImportError] = None
except ImportError as error:
    IMPORT_ERROR = error

OPTION = "filters"
# What counts as false beside false and null (JMESPath specification, "Or Expressions")
EMPTY: Tuple[Any, ...] = ("", [], {})
# Of these, what follows the first part is asked of what that part gives, and no more of the facts
ASKS_ON = ("subexpression", "index_expression", "projection", "filter_projection", "value_projection", "flatten",
           "slice", "pipe")
# Of those, what hands on all that its first part gives, be it the facts themselves
HANDS_ON = ("subexpression", "pipe")

# The library draws the place below the expression, on lines of their own
WITH_DRAWING = re.compile(r":? ?(?:Parse error|for expression)|:?\n")


class NodeFilters:
    """Expressions that must all be true of a node's facts. None at all picks every node."""

    def __init__(self, expressions: Sequence[Any]) -> None:
        """Raises GpuOpsError where the library is missing, and where expressions cannot be right, of all of them."""
        # What a configuration file of Ansible holds are texts that know their place, of which JMESPath knows nothing
        self.expressions = ["".join(each) if isinstance(each, str) else each for each in expressions]
        # {place among the filters: (the first node, what JMESPath said of it, how many nodes)}
        self._failures: Dict[int, Tuple[str, str, int]] = {}
        if self.expressions and IMPORT_ERROR is not None:
            raise GpuOpsError(
                "inventory.jmespath_missing",
                found="`filters` are given, and the Python library jmespath is not there (%s)" % IMPORT_ERROR,
                wanted="jmespath for the Python that runs Ansible on the controller",
                remedy="install it there: `python3 -m pip install jmespath`",
                option=OPTION,
            )
        self._compiled: List[Any] = []
        refusals: List[Refusal] = []
        for number, expression in enumerate(self.expressions):
            try:
                compiled = jmespath.compile(expression)
            # What is no text is refused by each version of the library in its own way
            except (ValueError, TypeError, AttributeError) as error:
                refusals.append(_unreadable(number, expression, getattr(error, "lex_position", None), str(error)))
                continue
            self._compiled.append(compiled)
            refusals.extend(_unreadable(number, expression, _place_of(word, expression), reason)
                            for word, reason in _mistakes(compiled.parsed))
        if refusals:
            raise GpuOpsError.because(refusals)

    def pick(self, facts: Mapping[str, Any]) -> bool:
        """Whether a node is picked. One for which an expression cannot be worked out is not; see failures."""
        for number, expression in enumerate(self._compiled):
            try:
                found = expression.search(facts)
            except jmespath.exceptions.JMESPathError as error:
                first, reason, count = self._failures.get(number, (str(facts["name"]), str(error), 0))
                self._failures[number] = (first, reason, count + 1)
                return False
            if found is None or found is False or found in EMPTY:
                return False
        return True

    def forget(self) -> None:
        """The nodes that were asked about; they come anew."""
        self._failures.clear()

    def failures(self) -> List[Refusal]:
        """Of each expression that could not be worked out for some nodes: for which, and why."""
        return [Refusal(
            "inventory.filter_failed",
            "filters[%d], %r, cannot be worked out for %d nodes, the first of them %s: %s" % (
                number, self.expressions[number], count, first, reason),
            "an expression that fits the facts of every node",
            "in `filters`, ask first whether a node has what is needed: `zone && starts_with(zone, 'eu')`", OPTION)
            for number, (first, reason, count) in sorted(self._failures.items())]


def _mistakes(tree: Mapping[str, Any]) -> Iterator[Tuple[str, str]]:
    """(the word, what is wrong with it) of what the library would find out only at work, or never."""
    facts = node_facts({})
    for name in _facts_named(tree):
        if name not in facts:
            yield name, "nodes have no fact %s; they have %s" % (name, ", ".join(sorted(facts)))
    for word in _negated_too_early(tree):
        yield word, "`!` is of what stands right behind it, and the rest asks true or false for something: put " \
            "parentheses around what is meant, as in `!(mig.strategy)`"
    for call in _calls(tree):
        name, given = call["value"], len(call["children"])
        function = jmespath.functions.Functions.FUNCTION_TABLE.get(name)
        if function is None:
            yield name, "there is no function %s" % name
        elif given < len(function["signature"]) or (
                given > len(function["signature"]) and not function["signature"][-1].get("variadic")):
            yield name, "%s takes %d arguments" % (name, len(function["signature"]))


def _facts_named(tree: Mapping[str, Any]) -> Iterator[str]:
    """The names that are looked up among the facts themselves."""
    if tree["type"] == "field":
        yield tree["value"]
    elif tree["type"] != "expref":
        for child in tree["children"]:
            if isinstance(child, dict):
                yield from _facts_named(child)
                if tree["type"] in ASKS_ON and not (tree["type"] in HANDS_ON and _is_all(child)):
                    break


def _is_all(tree: Mapping[str, Any]) -> bool:
    """Whether what it gives are the facts as they are: `@`."""
    return tree["type"] == "current" or (tree["type"] == "pipe" and all(map(_is_all, tree["children"])))


def _negated_too_early(tree: Mapping[str, Any]) -> Iterator[str]:
    """Each `!` whose answer, true or false, is asked for a part of it, with the word behind it; '' where there is none.

    In the library `!` binds more tightly than a dot.
    """
    children = [child for child in tree["children"] if isinstance(child, dict)]
    if tree["type"] in ASKS_ON and tree["type"] != "pipe" and children and children[0]["type"] == "not_expression":
        [negated] = children[0]["children"]
        yield "!@" if negated["type"] == "current" else "!" + negated["value"] if negated["type"] == "field" else ""
    for child in children:
        yield from _negated_too_early(child)


def _calls(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if tree["type"] == "function_expression":
        yield tree
    for child in tree["children"]:
        if isinstance(child, dict):
            yield from _calls(child)


def _place_of(word: str, expression: str) -> Optional[int]:
    """Counted from 0; None where it is not known, or written in another way."""
    place = expression.find(word) if word else -1
    return None if place < 0 else place


def _unreadable(number: int, expression: Any, position: Optional[int], reason: str) -> Refusal:
    """position: counted from 0."""
    column = "" if position is None else ", column %d" % (position + 1)
    return Refusal(
        "inventory.filter_unreadable",
        "%r in filters[%d]%s: %s" % (expression, number, column, WITH_DRAWING.split(reason)[0]),
        "a JMESPath expression on the facts of a node",
        "correct `filters`: texts stand in single quotes, numbers in backticks, names with dots or slashes in double "
        "quotes", OPTION)
