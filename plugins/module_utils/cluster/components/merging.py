# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Merges as RFC 7386 has them: mappings by key at every depth, null removes a key, all else replaces. Pure.

An option that is a mapping is such a patch of its default, so that `image: {repository: mirror}` keeps the tag. So is
what a user wants changed of an object.
"""
from __future__ import annotations

from typing import Any, Dict, Mapping


def merged(base: Mapping[str, Any], patch: Mapping[str, Any], keep_nulls: bool = False) -> Dict[str, Any]:
    """The base with the patch merged into it. Neither is changed; what they do not share is not copied.

    keep_nulls: a key that null removes stays, as null: the result is a patch that does the same to the same base.
    """
    result = dict(base)
    for key, value in patch.items():
        if value is None and not keep_nulls:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merged(below if isinstance(below, Mapping) else {}, value, keep_nulls)
        else:
            result[key] = value
    return result


def completed(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> Dict[str, Any]:
    """Every argument: as given, a mapping merged into its default, else the default. Completed again, it is the same.

    arguments: an Ansible argument specification. In a mapping whose keys it names (`options`), a key that Ansible has
    filled in with null was not given.
    """
    return {name: _value(argument, parameters.get(name)) for name, argument in arguments.items()}


def effective(arguments: Mapping[str, Any], whole: Mapping[str, Any]) -> Dict[str, Any]:
    """Completed parameters without what null has removed from a default.

    Without one there is nothing to remove: such a mapping stays as given, and null in it may be meant for another base.
    """
    return {name: merged({}, value) if _has_free_default(arguments[name]) and isinstance(value, Mapping) else value
            for name, value in whole.items()}


def _has_free_default(argument: Mapping[str, Any]) -> bool:
    return isinstance(argument.get("default"), Mapping) and bool(argument["default"]) and "options" not in argument


def _value(argument: Mapping[str, Any], given: Any) -> Any:
    default = argument.get("default")
    if given is None:
        return default
    if not isinstance(default, Mapping) or not isinstance(given, Mapping):
        return given
    if "options" in argument:
        given = {key: value for key, value in given.items() if value is not None}
    return merged(default, given, keep_nulls=True)
