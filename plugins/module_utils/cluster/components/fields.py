# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Objects compared field by field, and the server's book of who said which field (managedFields). Pure.

A path is what fieldsV1 is made of, outermost first: 'f:spec', 'k:{"name":"x"}' for an element of a list that has keys,
'v:"x"' for an element of a set. A list without keys is one field. (structured-merge-diff of sigs.k8s.io,
fieldpath/serialize.go.)
"""
from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from ..client import FIELD_MANAGER
from .common import Object

try:
    import yaml
except ImportError:
    yaml = None

Path = Tuple[str, ...]

# Lists whose elements have keys, in the built-in kinds (x-kubernetes-list-map-keys of their OpenAPI documents).
_KEYS: Dict[str, Tuple[str, ...]] = {
    "claims": ("name",), "containers": ("name",), "env": ("name",), "hostAliases": ("ip",),
    "imagePullSecrets": ("name",), "initContainers": ("name",), "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"), "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",), "volumes": ("name",),
}
_KEYS_OF_CONTAINER_PORTS = ("containerPort", "protocol")
_KEYS_OF_SERVICE_PORTS = ("port", "protocol")
_DEFAULTS_OF_KEYS = {"protocol": "TCP"}
# Their schemas are not of the built-in kinds: their lists have no keys.
_WITHOUT_KEYS = ("CustomResourceDefinition", "NodeFeatureRule", "ServiceMonitor")

# An empty value of these is the same as none, and the server has none.
_NOTHING_WHEN_EMPTY = ("affinity", "annotations", "data", "labels", "limits", "nodeSelector", "requests", "resources",
                       "securityContext")
# Mappings that are one field (x-kubernetes-map-type: atomic) and have no defaults: what is beside is a difference.
_WHOLE = ("f:nodeSelector",)
_QUANTITIES = ("f:limits", "f:requests", "f:hard")
_QUANTITY_FIELDS = ("f:sizeLimit", "f:divisor")
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?")
_UNITS: Dict[str, Decimal] = {
    "n": Decimal(10) ** -9, "u": Decimal(10) ** -6, "m": Decimal(10) ** -3,
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{unit + "i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}

# What the server keeps of an object for itself.
_SERVERS = ("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "managedFields",
            "resourceVersion", "selfLink", "uid")
_SERVERS_ANNOTATIONS = ("deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation")


def without_nulls(value: Any) -> Any:
    """The same without the keys whose value is None: to the server they are not said."""
    if isinstance(value, Mapping):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)):
        return [without_nulls(each) for each in value]
    return value


def overlaid(there: Any, wanted: Any) -> Any:
    """What is there with what is wanted in its place; lists are taken whole."""
    if isinstance(there, Mapping) and isinstance(wanted, Mapping):
        return {**there, **{name: overlaid(there.get(name), value) for name, value in wanted.items()}}
    return wanted


def plain(item: Object) -> Object:
    """An object without what the server keeps of it for itself."""
    metadata = {name: value for name, value in item["metadata"].items() if name not in _SERVERS}
    annotations = {name: value for name, value in (metadata.pop("annotations", None) or {}).items()
                   if name not in _SERVERS_ANNOTATIONS}
    if annotations:
        metadata["annotations"] = annotations
    return {**{name: value for name, value in item.items() if name != "status"}, "metadata": metadata}


def text(item: Object) -> str:
    """The object as YAML, in one order whoever has written it; without what is the server's own."""
    return document(plain(item), sort_keys=True)


def document(item: Mapping[str, Any], sort_keys: bool = False) -> str:
    """An object as YAML to be read: the files in a ConfigMap stand there as they are."""
    shown: str = yaml.dump(item, Dumper=_dumper(), sort_keys=sort_keys, default_flow_style=False, allow_unicode=True,
                           width=120)
    return shown


def _dumper() -> Any:
    class Dumper(yaml.SafeDumper):  # type: ignore[misc, unused-ignore]
        """Without anchors."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(str, lambda dumper, value: dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None))
    return Dumper


# Who said what

def applied_fields(item: Object) -> Optional[Mapping[str, Any]]:
    """fieldsV1 of what gpuops has applied; None where it has applied nothing: the object is somebody else's."""
    for entry in _entries(item):
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply":
            fields: Mapping[str, Any] = entry.get("fieldsV1") or {}
            return fields
    return None


def managers(item: Object) -> List[str]:
    """Who else has said something of the object; those who only tell its status are none."""
    return sorted({str(entry.get("manager")) for entry in _others(item)})


def _entries(item: Object) -> List[Mapping[str, Any]]:
    return [entry for entry in item["metadata"].get("managedFields") or () if not entry.get("subresource")]


def _others(item: Object) -> List[Mapping[str, Any]]:
    return [entry for entry in _entries(item) if entry.get("manager") != FIELD_MANAGER
            and set(entry.get("fieldsV1") or {"f:metadata": {}}) - {"f:status"}]


def holders(item: Object, paths: Iterable[Path]) -> List[str]:
    """Who else says one of these fields, something in it, or the whole that it is a part of."""
    wanted = list(paths)
    return sorted({str(entry.get("manager")) for entry in _others(item)
                   if any(_touches(entry.get("fieldsV1") or {}, path) for path in wanted)})


def _touches(fields: Mapping[str, Any], path: Path) -> bool:
    for part in path:
        within = _within(fields, part)
        if within is None:
            return False
        if not within:
            return True
        fields = within
    return True


def _within(fields: Mapping[str, Any], part: str) -> Optional[Mapping[str, Any]]:
    """The fields below a part of a path; None where it is not among them."""
    if part in fields:
        return fields[part] or {}
    if part.startswith("k:"):
        keys = json.loads(part[2:])
        for name, below in fields.items():
            if name.startswith("k:") and json.loads(name[2:]) == keys:
                return below or {}
    return None


def unsaid(fields: Mapping[str, Any], wanted: Any, path: Path = ()) -> Iterator[Path]:
    """Fields among these that the wanted object does not say."""
    for part, below in fields.items():
        if part == ".":
            continue
        found, value = _said(part, wanted)
        if not found:
            yield (*path, part)
        elif below:
            yield from unsaid(below, value, (*path, part))


def _said(part: str, wanted: Any) -> Tuple[bool, Any]:
    """(whether a part of a path is in this value, what is there)."""
    sort, _colon, name = part.partition(":")
    if sort == "f":
        return (True, wanted[name]) if isinstance(wanted, Mapping) and name in wanted else (False, None)
    if not isinstance(wanted, list):
        return False, None
    if sort == "k":
        keys = json.loads(name)
        for element in wanted:
            if isinstance(element, Mapping) and all(
                    element.get(key, _DEFAULTS_OF_KEYS.get(key)) == value for key, value in keys.items()):
                return True, element
        return False, None
    if sort == "v":
        return (json.loads(name) in wanted), json.loads(name)
    return int(name) < len(wanted), None


# What is different

def differences(wanted: Object, item: Object) -> List[Path]:
    """Fields of the wanted object that the one of the server lacks or has with another value.

    What the server has beside, defaults and what others have said, is no difference. [] is certain; where something is
    named, what the server would make of the wanted object decides.
    """
    keyed = wanted["kind"] not in _WITHOUT_KEYS
    return list(_differences(wanted, item, (), applied_fields(item), keyed))


def _differences(wanted: Any, there: Any, path: Path, ours: Optional[Mapping[str, Any]],
                 keyed: bool) -> Iterator[Path]:
    if isinstance(wanted, Mapping):
        if not isinstance(there, Mapping):
            yield path
            return
        if path[-1:] and path[-1] in _WHOLE and set(there) - set(wanted):
            yield path
        for name, value in wanted.items():
            if name in there:
                yield from _differences(value, there[name], (*path, "f:" + name), ours, keyed)
            elif not (value == [] or (value == {} and name in _NOTHING_WHEN_EMPTY)):
                yield (*path, "f:" + name)
    elif isinstance(wanted, list):
        keys = _keys(path, wanted) if keyed else ()
        if not isinstance(there, list):
            yield path
        elif keys:
            yield from _elements(wanted, there, path, ours, keys)
        elif not _same_list(wanted, there, path, ours):
            yield path
    elif not _same(wanted, there, path):
        yield path


def _keys(path: Path, wanted: List[Any]) -> Tuple[str, ...]:
    """The keys of a list's elements, () where it has none."""
    if not wanted or not all(isinstance(element, Mapping) for element in wanted):
        return ()
    name = path[-1][2:]
    if name == "ports":
        if "containerPort" in wanted[0]:
            return _KEYS_OF_CONTAINER_PORTS
        return _KEYS_OF_SERVICE_PORTS if path == ("f:spec", "f:ports") else ()
    # A ServiceAccount's list of them is one field.
    return () if path == ("f:imagePullSecrets",) else _KEYS.get(name, ())


def _elements(wanted: List[Any], there: List[Any], path: Path, ours: Optional[Mapping[str, Any]],
              keys: Tuple[str, ...]) -> Iterator[Path]:
    def named(element: Mapping[str, Any]) -> Dict[str, Any]:
        told = {key: element.get(key, _DEFAULTS_OF_KEYS.get(key)) for key in keys}
        return {key: value for key, value in told.items() if value is not None}

    known = {json.dumps(named(element), sort_keys=True): element for element in there if isinstance(element, Mapping)}
    for element in wanted:
        name = json.dumps(named(element), sort_keys=True)
        inside = (*path, "k:" + json.dumps(named(element), separators=(",", ":")))
        if name in known:
            yield from _differences(element, known[name], inside, ours, True)
        else:
            yield inside


def _same_list(wanted: List[Any], there: List[Any], path: Path, ours: Optional[Mapping[str, Any]]) -> bool:
    """Whether a list that is one field is the wanted one. What its elements have beside are defaults as long as the
    field is ours: whoever changes anything in it has it from us."""
    if len(wanted) != len(there):
        return False
    pairs = list(zip(wanted, there))
    if any(next(_differences(mine, theirs, path, ours, False), None) is not None for mine, theirs in pairs):
        return False
    return wanted == there or ours is None or _touches(ours, path)


def _same(wanted: Any, there: Any, path: Path) -> bool:
    if isinstance(wanted, bool) or isinstance(there, bool):
        return wanted is there
    if wanted == there:
        return True
    if path[-1:] and (path[-1] in _QUANTITY_FIELDS or path[-2:-1] and path[-2] in _QUANTITIES):
        mine, theirs = quantity(wanted), quantity(there)
        return mine is not None and mine == theirs
    return False


def quantity(value: Any) -> Optional[Decimal]:
    """The number behind a quantity in any of its forms ('0.5', '500m'); None for what is none."""
    found = _QUANTITY.fullmatch(str(value).strip())
    if found is None:
        return None
    number, exponent, unit = found.groups()
    return Decimal(number) * (Decimal(10) ** int(exponent) if exponent else _UNITS[unit] if unit else 1)


def spoken(path: Path) -> str:
    """A path for a person: spec.template.spec.containers[name=x].image."""
    words = ""
    for part in path:
        sort, _colon, name = part.partition(":")
        if sort == "f":
            words += "." + name if words else name
        elif sort == "k":
            words += "[%s]" % ",".join("%s=%s" % each for each in json.loads(name).items())
        else:
            words += "[%s]" % name
    return words
