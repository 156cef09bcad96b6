# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A user's patches of a component's objects: merge patches (RFC 7386) by kind and name. Pure."""
from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from ...core.errors import GpuOpsError
from .common import COMPONENT, MANAGED_BY, NAME, PART_OF, Object
from .merging import merged

_OURS = (NAME, PART_OF, MANAGED_BY, COMPONENT)


def patched(objects: Sequence[Object], patches: Sequence[Mapping[str, Any]]) -> List[Object]:
    """The objects with the patches merged into those of their kind and name, in the order of the patches.

    Raises GpuOpsError where a patch meets no object, or would make another object of one.
    """
    result = list(objects)
    for patch in patches:
        places = [place for place, each in enumerate(result)
                  if (each["kind"], each["metadata"]["name"]) == (patch["kind"], patch["name"])]
        if not places:
            raise GpuOpsError(
                "cluster.patch_without_object",
                found="a patch of %s %s; the component has %s" % (patch["kind"], patch["name"], ", ".join(
                    "%s %s" % (each["kind"], each["metadata"]["name"]) for each in result)),
                wanted="patches of objects that the component has with these options",
                remedy="correct `kind` and `name` in `patches`, or take the patch out", option="patches")
        for place in places:
            result[place] = _patched(result[place], patch["patch"])
    return result


def _patched(before: Object, patch: Mapping[str, Any]) -> Object:
    after = merged(before, patch)
    if _identity(before) != _identity(after):
        raise GpuOpsError(
            "cluster.patch_of_identity",
            found="a patch of %s %s changes its apiVersion, kind, name, namespace or a label that it is found by"
                  % (before["kind"], before["metadata"]["name"]),
            wanted="patches of what an object says, and not of which one it is",
            remedy="leave these out of the patch in `patches`; a namespace is chosen by `namespace`",
            option="patches")
    return after


def _identity(each: Object) -> List[Any]:
    metadata = each.get("metadata") or {}
    found = metadata.get("labels") or {}
    return [each.get("apiVersion"), each.get("kind"), metadata.get("name"), metadata.get("namespace"),
            *(found.get(label) for label in _OURS)]
