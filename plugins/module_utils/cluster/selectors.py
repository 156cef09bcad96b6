# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which objects a selector of labels selects, as pkg/labels of kubernetes/apimachinery reads it. Pure."""
from __future__ import annotations

import re
from typing import Any, Mapping, Optional, Tuple

from ..core.errors import GpuOpsError

Requirements = Tuple[Mapping[str, Any], ...]

# Between requirements, not between the values of one
_COMMA = re.compile(r",(?![^(]*\))")
_KEY = r"[A-Za-z0-9](?:[\w./-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    r"(?:!\s*(?P<unwanted>{key})|(?P<key>{key})(?:\s*(?P<sign>==?|!=|[<>])\s*(?P<value>{value})"
    r"|\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\))?)".format(key=_KEY, value=_VALUE))
_OPERATORS = {"=": "In", "==": "In", "in": "In", "!=": "NotIn", "notin": "NotIn", ">": "Gt", "<": "Lt"}


def parsed(text: str, option: str) -> Requirements:
    """The requirements of a selector as kubectl takes it: 'a=b,c in (d,e),!f'. () for an empty one.

    option: the module's option that has it. Raises GpuOpsError where the API server would not take it.
    """
    return tuple(_requirement(part.strip(), text, option) for part in _COMMA.split(text) if text.strip())


def _requirement(part: str, text: str, option: str) -> Mapping[str, Any]:
    found = _REQUIREMENT.fullmatch(part)
    values = [each.strip() for each in found["values"].split(",")] if found and found["word"] else []
    if found is None or any(re.fullmatch(_VALUE, value) is None for value in values):
        raise GpuOpsError(
            "cluster.selector_malformed", found="`%s` is %r" % (option, text),
            wanted="a selector of labels as kubectl takes it, such as app=trainer,tier in (batch,test)",
            remedy="correct `%s`" % option, option=option)
    if found["unwanted"]:
        return {"key": found["unwanted"], "operator": "DoesNotExist"}
    how = found["sign"] or found["word"]
    if not how:
        return {"key": found["key"], "operator": "Exists"}
    return {"key": found["key"], "operator": _OPERATORS[how], "values": values or [found["value"]]}


def of_object(selector: Optional[Mapping[str, Any]]) -> Optional[Requirements]:
    """The requirements of a labelSelector in an object's spec; None, which selects nothing, where there is none."""
    if selector is None:
        return None
    exact = tuple({"key": key, "operator": "In", "values": [value]}
                  for key, value in (selector.get("matchLabels") or {}).items())
    return exact + tuple(selector.get("matchExpressions") or ())


def selects(requirements: Optional[Requirements], labels: Mapping[str, str]) -> bool:
    """Whether all requirements are met; none at all select everything, None nothing."""
    return requirements is not None and all(is_met(each, labels) for each in requirements)


def is_met(requirement: Mapping[str, Any], there: Mapping[str, str]) -> bool:
    """One requirement: key, operator and values, as objects have it."""
    key, operator, values = (requirement.get(name) for name in ("key", "operator", "values"))
    value = there.get(str(key))
    if operator in ("NotIn", "DoesNotExist"):
        return value is None or (operator == "NotIn" and value not in (values or ()))
    if operator in ("Gt", "Lt"):
        return _is_beyond(value, values, 1 if operator == "Gt" else -1)
    return value is not None and (operator == "Exists" or value in (values or ()))


def _is_beyond(value: Any, values: Any, sign: int) -> bool:
    try:
        return sign * int(value) > sign * int(values[0])
    except (TypeError, ValueError, IndexError):
        return False
