# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which objects of a list the API server answers with, by labelSelector and fieldSelector.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/
"""
from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping

# Between requirements, not between the values of one
_COMMA = re.compile(r",(?![^(]*\))")
_REQUIREMENT = re.compile(
    r"\s*(?:!\s*(?P<unwanted>[\w./-]+)|(?P<key>[\w./-]+)"
    r"(?:\s*(?P<sign>==?|!=)\s*(?P<value>[\w.-]*)|\s+(?P<word>in|notin)\s+\((?P<values>[^()]*)\))?)\s*")
_FIELD = re.compile(r"([\w./]+)(==?|!=)([^=!]*)")
# {kind: fields that it can be selected by, beside its name and namespace}
_FIELDS: Dict[str, List[str]] = {
    "Pod": ["spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
            "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"],
    "Node": ["spec.unschedulable"],
    "ResourceSlice": ["spec.nodeName", "spec.driver"],
}


class Unreadable(Exception):
    """What the API server answers a selector that it does not take with, as status 400."""


def selector(kind: str, query: Mapping[str, str]) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an object of the kind is one of those that a request asks for. Raises Unreadable."""
    labels = [_requirement(part) for part in _COMMA.split(query.get("labelSelector") or "") if part.strip()]
    fields = [_field(kind, part) for part in (query.get("fieldSelector") or "").split(",") if part]

    def is_selected(item: Mapping[str, Any]) -> bool:
        return (all(meets(item["metadata"].get("labels") or {}) for meets in labels)
                and all(meets(item) for meets in fields))
    return is_selected


def _requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    found = _REQUIREMENT.fullmatch(text)
    if found is None:
        raise Unreadable("unable to parse requirement: %s" % text)
    if found["unwanted"]:
        return lambda labels: found["unwanted"] not in labels
    key = found["key"]
    if not (found["sign"] or found["word"]):
        return lambda labels: key in labels
    values = [found["value"]] if found["sign"] else [each.strip() for each in found["values"].split(",")]
    if found["sign"] == "!=" or found["word"] == "notin":
        return lambda labels: labels.get(key) not in values
    return lambda labels: labels.get(key) in values


def _field(kind: str, text: str) -> Callable[[Mapping[str, Any]], bool]:
    found = _FIELD.fullmatch(text)
    if found is None:
        raise Unreadable("invalid selector: '%s'; can't understand '%s'" % (text, text))
    path, sign, value = found.groups()
    if path not in ("metadata.name", "metadata.namespace", *_FIELDS.get(kind, ())):
        raise Unreadable("field label not supported: %s" % path)
    return lambda item: (_at(item, path) == value) != (sign == "!=")


def _at(item: Any, path: str) -> str:
    """As the server compares it: what is not there is empty, or false."""
    for part in path.split("."):
        item = (item or {}).get(part)
    if path in ("spec.unschedulable", "spec.hostNetwork"):
        return str(bool(item)).lower()
    return str(item or "")
