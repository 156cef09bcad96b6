# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of which GPUs, and the `version: v1` document of NVIDIA/mig-parted that says so. Pure.

Source: api/spec/v1 and pkg/types of NVIDIA/mig-parted v0.15, pkg/nvlib/device of NVIDIA/go-nvlib. Refused beside what
these refuse is what they take and then never find: a device filter that is none, an index below 0, an empty list of
devices; and a slip that they take for 0 or false: a key without a value.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal

ALL = "all"
VERSION = "v1"
CONFIGURATIONS = "mig-configs"
FILTER, DEVICES, ENABLED, INSTANCES = "device-filter", "devices", "mig-enabled", "mig-devices"
ENTRY_KEYS = (FILTER, DEVICES, ENABLED, INSTANCES)

_FILTER = re.compile(r"0x[0-9a-f]{8}(:0x[0-9a-f]{8})?")
_ATTRIBUTE = r"[a-z](?:[a-z0-9.]*[a-z0-9])?"
_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.\d+gb(?:[+-](?P<attributes>%s(?:,%s)*))?" % (_ATTRIBUTE, _ATTRIBUTE))


@dataclass(frozen=True)
class Instances:
    """GPU instances of one profile that are wanted.

    profile: as the user names it, see profiles.py.
    count:   how many GPU instances; of a name with 'Nc.' in front, how many MIG devices: they share GPU instances.
    start:   the unit at which the one has to begin; None for any.
    compute: slices of the compute instances in each; () for one that takes all of it.
    """

    profile: str
    count: int = 1
    start: Optional[int] = None
    compute: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Entry:
    """GPUs, and what they are to be.

    where:     what a refusal calls it: "entry 2 of 'all-balanced' in `configs`".
    gpus:      'all', indices, UUIDs, PCI addresses; see selection.py.
    filters:   device ids in lower case, '0x233010de' or '0x233010de:0x16c110de', of which the GPU has to have one; ()
               for any.
    enabled:   whether MIG mode is to be on.
    instances: None leaves those that there are, () takes all away.
    """

    where: str
    gpus: Tuple[str, ...] = (ALL,)
    filters: Tuple[str, ...] = ()
    enabled: bool = True
    instances: Optional[Tuple[Instances, ...]] = None


def read(document: Mapping[str, Any]) -> Dict[str, Tuple[Entry, ...]]:
    """{label: its entries, in order}. Raises GpuOpsError with all that is wrong with the document."""
    refusals = _of_document(document)
    labels = {}
    configurations = document.get(CONFIGURATIONS)
    if isinstance(configurations, Mapping):
        for label, entries in configurations.items():
            labels[str(label)] = _entries(str(label), entries, refusals)
    if refusals:
        raise GpuOpsError.because(refusals)
    return labels


def refuse_filter(where: str, text: Any, option: str) -> Optional[Refusal]:
    """Of a device filter that is none."""
    if isinstance(text, str) and _FILTER.fullmatch(text.lower()):
        return None
    return Refusal(
        "mig.device_filter_malformed",
        found="%s: the device filter %s" % (where, _shown(text)),
        wanted="the PCI ids of a board as hexadecimal digits, device then vendor: '0x233010DE', or with those of its "
               "subsystem '0x233010DE:0x16C110DE'",
        remedy="correct it, and write it in quotes: YAML takes it for a number without",
        option=option,
    )


def _of_document(document: Mapping[str, Any]) -> List[Refusal]:
    refusals = []
    if document.get("version") != VERSION:
        refusals.append(Refusal(
            "mig.document_version",
            found="`configs` has the version %s" % _shown(document.get("version")),
            wanted="version: v1",
            remedy="give `configs` the whole of a file of nvidia-mig-parted, which begins with `version: v1`",
            option="configs",
        ))
    unknown = sorted(str(key) for key in document if key not in ("version", CONFIGURATIONS))
    if unknown:
        refusals.append(Refusal(
            "mig.document_key_unknown",
            found="`configs` has %s" % _quoted(unknown),
            wanted="nothing beside 'version' and 'mig-configs'",
            remedy="take it out of `configs`, or correct its name",
            option="configs",
        ))
    labels = document.get(CONFIGURATIONS)
    if not isinstance(labels, Mapping) or not labels:
        refusals.append(Refusal(
            "mig.document_without_labels",
            found="'mig-configs' in `configs` is %s" % _shown(labels),
            wanted="at least one label and its entries",
            remedy="give `configs` the whole of a file of nvidia-mig-parted",
            option="configs",
        ))
    return refusals


def _entries(label: str, entries: Any, refusals: List[Refusal]) -> Tuple[Entry, ...]:
    if not isinstance(entries, list) or not entries:
        refusals.append(Refusal(
            "mig.label_without_entries",
            found="'%s' in `configs` is %s" % (label, _shown(entries)),
            wanted="a list of at least one entry",
            remedy="give it entries, or take the label out of `configs`",
            option="configs",
        ))
        return ()
    return tuple(_entry("entry %d of '%s' in `configs`" % (number, label), entry, refusals)
                 for number, entry in enumerate(entries, 1))


def _entry(where: str, data: Any, refusals: List[Refusal]) -> Entry:
    """The entry, of use only where it adds no refusal."""
    if not isinstance(data, Mapping):
        refusals.append(Refusal(
            "mig.entry_malformed",
            found="%s is %s" % (where, _shown(data)),
            wanted="a mapping: which GPUs, and what they are to be",
            remedy="correct it in `configs`",
            option="configs",
        ))
        return Entry(where)
    refusals.extend(_of_keys(where, data))
    enabled = data.get(ENABLED)
    if ENABLED in data and not isinstance(enabled, bool):
        refusals.append(Refusal(
            "mig.enabled_malformed",
            found="%s: 'mig-enabled': %s" % (where, _shown(enabled)),
            wanted="true or false",
            remedy="correct it in `configs`",
            option="configs",
        ))
    instances = _instances(where, data.get(INSTANCES), refusals)
    if enabled is False and instances:
        refusals.append(Refusal(
            "mig.instances_without_mode",
            found="%s has 'mig-devices' with 'mig-enabled': false" % where,
            wanted="no instances on a GPU whose MIG mode is off",
            remedy="take 'mig-devices' out of the entry, or set 'mig-enabled' to true, in `configs`",
            option="configs",
        ))
    return Entry(where, _devices(where, data, refusals), _filters(where, data.get(FILTER), refusals), bool(enabled),
                 instances)


def _of_keys(where: str, data: Mapping[str, Any]) -> List[Refusal]:
    refusals = []
    unknown = sorted(str(key) for key in data if key not in ENTRY_KEYS)
    if unknown:
        refusals.append(Refusal(
            "mig.entry_key_unknown",
            found="%s has %s" % (where, _quoted(unknown)),
            wanted="none but %s" % _quoted(ENTRY_KEYS),
            remedy="take it out of `configs`, or correct its name",
            option="configs",
        ))
    missing = [key for key in (DEVICES, ENABLED) if key not in data]
    if data.get(ENABLED) is True and data.get(INSTANCES) is None:
        missing.append(INSTANCES)
    if missing:
        refusals.append(Refusal(
            "mig.entry_key_missing",
            found="%s has no %s" % (where, _quoted(missing)),
            wanted="'devices' and 'mig-enabled', and with MIG mode on 'mig-devices', which may be {}",
            remedy="add it in `configs`",
            option="configs",
        ))
    return refusals


def _devices(where: str, data: Mapping[str, Any], refusals: List[Refusal]) -> Tuple[str, ...]:
    devices = data.get(DEVICES)
    if devices == ALL or DEVICES not in data:
        return (ALL,)
    if isinstance(devices, list) and devices and all(_is_count(device) for device in devices):
        return tuple(str(device) for device in devices)
    refusals.append(Refusal(
        "mig.devices_malformed",
        found="%s: 'devices': %s" % (where, _shown(devices)),
        wanted="'all', or a list of indices of GPUs, from 0",
        remedy="correct it in `configs`; GPUs by UUID or PCI address can be named in `layout`",
        option="configs",
    ))
    return ()


def _filters(where: str, given: Any, refusals: List[Refusal]) -> Tuple[str, ...]:
    filters = given if isinstance(given, list) else [given] if given not in (None, "") else []
    refused = [refusal for refusal in (refuse_filter(where, text, "configs") for text in filters) if refusal]
    refusals.extend(refused)
    return () if refused else tuple(text.lower() for text in filters)


def _instances(where: str, given: Any, refusals: List[Refusal]) -> Tuple[Instances, ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        refusals.append(Refusal(
            "mig.instances_malformed",
            found="%s: 'mig-devices': %s" % (where, _shown(given)),
            wanted="a mapping of profiles to how many there are to be, such as {\"1g.10gb\": 7}, or {}",
            remedy="correct it in `configs`",
            option="configs",
        ))
        return ()
    for profile in given:
        if not _is_profile(str(profile)):
            refusals.append(Refusal(
                "mig.profile_name_malformed",
                found="%s: the profile '%s'" % (where, profile),
                wanted="a name such as 1g.10gb, 1g.10gb+me, 1g.24gb-me or 1c.3g.40gb, in lower case",
                remedy="correct it in `configs`; `layout` takes ids and shapes (19, 3g) too",
                option="configs",
            ))
    wrong = [(profile, count) for profile, count in given.items() if not _is_count(count)]
    for profile, count in wrong:
        refusals.append(Refusal(
            "mig.count_malformed",
            found="%s: '%s': %s" % (where, profile, _shown(count)),
            wanted="how many of them there are to be: 0 or more",
            remedy="correct it in `configs`",
            option="configs",
        ))
    if given and not wrong and not any(given.values()):
        refusals.append(Refusal(
            "mig.counts_all_zero",
            found="%s: every count in 'mig-devices' is 0" % where,
            wanted="at least one instance, or {} for none",
            remedy="correct it in `configs`",
            option="configs",
        ))
    return tuple(Instances(str(profile), count) for profile, count in given.items() if count)


def _is_profile(name: str) -> bool:
    found = _PROFILE.fullmatch(name)
    attributes = (found.group("attributes") or "").split(",") if found else []
    return found is not None and len(set(attributes)) == len(attributes)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shown(value: Any) -> str:
    """A value as YAML's reader made it of the user's text, short enough for a sentence."""
    text = "'%s'" % value if isinstance(value, str) else repr(value) if value is not None else "nothing"
    return text if len(text) <= 60 else text[:57] + "..."


def _quoted(names: Iterable[str]) -> str:
    return ", ".join("'%s'" % name for name in names)
