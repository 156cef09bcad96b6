# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of MIG on this host."""
from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal
from . import configuration, profiles
from .configuration import ALL, Entry, Instances

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "config": {"type": "str", "default": ""},
    "label": {"type": "str", "default": ""},
    "configs": {"type": "dict", "default": {}},
    "layout": {"type": "list", "elements": "dict", "default": [], "options": {
        "gpus": {"type": "list", "elements": "str", "default": [ALL]},
        "device_filter": {"type": "list", "elements": "str", "default": []},
        "enabled": {"type": "bool", "default": True},
        "instances": {"type": "list", "elements": "dict", "options": {
            "profile": {"type": "str", "required": True},
            "count": {"type": "int", "default": 1},
            "start": {"type": "int"},
            "compute": {"type": "list", "elements": "str", "default": []},
        }},
    }},
    "assume_pods_evicted": {"type": "bool", "default": False},
}

# Layouts that are there without `configs`, by the names of nvidia-mig-parted's own file
DISABLED, ENABLED, BALANCED = "all-disabled", "all-enabled", "all-balanced"
FILLED = "all-"
# The Node's label behind `label`, which the reader has set there
NODE_LABEL = "label nvidia.com/mig.config of the Node"
RELABEL = "correct it on the Node (`kubectl label --overwrite node NODE nvidia.com/mig.config=...`)"


@dataclass(frozen=True)
class Policy:
    """What the GPUs of this host are to be; nothing in it contradicts itself.

    state:               present, or absent: MIG mode off, and nothing of ours left.
    config:              name of the layout, '' where it is written out.
    entries:             in order: of those that are for a GPU the last one counts.
    fill:                what every GPU is filled with instead of what its entry names: a profile, as the user names it,
                         or BALANCED; '' for nothing.
    assume_pods_evicted: whether pods that hold GPUs now will have been evicted by then.
    label:               whether the host's Node says the name.
    in_file:             whether the entries are those of the file.
    idle_file:           whether there is a file, and nothing that chooses a layout.
    """

    state: str = "present"
    config: str = ""
    entries: Tuple[Entry, ...] = ()
    fill: str = ""
    assume_pods_evicted: bool = False
    label: bool = False
    in_file: bool = False
    idle_file: bool = False

    @property
    def managed(self) -> bool:
        """Whether anything is wanted of MIG; otherwise it is left as it is."""
        return self.state == "absent" or bool(self.entries)

    @property
    def option(self) -> str:
        """The option in which it is written what the GPUs are to be."""
        return "configs" if self.in_file else "label" if self.label else "config" if self.config else "layout"

    @property
    def correction(self) -> str:
        """What a remedy tells to do about it."""
        return RELABEL if self.option == "label" else "correct `%s`" % self.option

    @property
    def called(self) -> str:
        """What a refusal calls the whole of it."""
        return _called(self.config, self.label) if self.config else "`layout`"


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    """Raises GpuOpsError with everything in the options that contradicts itself."""
    state, evicted = parameters["state"], parameters["assume_pods_evicted"]
    if state == "absent":
        return Policy(state=state, assume_pods_evicted=evicted)
    label = parameters["label"].strip()
    config, document = label or parameters["config"].strip(), parameters["configs"]
    layout = [] if label else parameters["layout"]
    labels = configuration.read(document) if document else {}
    refusals: List[Refusal] = []
    if config and layout:
        refusals.append(Refusal(
            "mig.config_and_layout",
            found="`config` ('%s') and `layout`" % config,
            wanted="one of them: each says what all of this host's GPUs are to be",
            remedy="leave `config` or `layout` out",
            option="config",
        ))
    entries = tuple(_entry("entry %d of `layout`" % number, entry, refusals)
                    for number, entry in enumerate(layout or (), 1))
    named = _named(config, labels, _called(config, bool(label))) if config else None
    if config and named is None:
        refusals.append(_unknown("label" if label else "config", config, labels))
    if refusals:
        raise GpuOpsError.because(refusals)
    if named is not None:
        return Policy(state, config, *named, evicted, bool(label), in_file=config in labels)
    return Policy(state, "", entries, "", evicted, idle_file=bool(labels) and not entries)


def _called(config: str, is_label: bool) -> str:
    return "%s '%s'" % (NODE_LABEL if is_label else "`config`", config)


def _named(
    config: str, labels: Mapping[str, Tuple[Entry, ...]], where: str
) -> Optional[Tuple[Tuple[Entry, ...], str]]:
    """(entries, fill) of the layout of this name; None where there is none."""
    if config in labels:
        return labels[config], ""
    if config in (DISABLED, ENABLED):
        return (Entry(where, enabled=config == ENABLED, instances=()),), ""
    if config == BALANCED:
        return (Entry(where),), BALANCED
    profile = config[len(FILLED):] if config.startswith(FILLED) else ""
    word = profiles.parse(profile)
    if profiles.is_id(profile) or word is not None and word.compute is None:
        return (Entry(where),), profile
    return None


def _unknown(option: str, config: str, labels: Mapping[str, Any]) -> Refusal:
    known = [DISABLED, ENABLED, BALANCED, *labels]
    alike = difflib.get_close_matches(config, known, 3, 0.7)
    return Refusal(
        "mig.config_unknown",
        found="%s%s" % (_called(config, option == "label"), "; alike: %s" % ", ".join(alike) if alike else ""),
        wanted="%s, %s and a profile, or a label of `configs`%s" % (
            ", ".join((DISABLED, ENABLED, BALANCED)), FILLED, " (%s)" % ", ".join(labels) if labels else ""),
        remedy="%s, or give `configs` the file that has this label" % (
            RELABEL if option == "label" else "correct it"),
        option=option,
    )


def _entry(where: str, given: Mapping[str, Any], refusals: List[Refusal]) -> Entry:
    """The entry, of use only where it adds no refusal."""
    if not given["gpus"]:
        refusals.append(Refusal(
            "mig.layout_without_gpus",
            found="%s has no GPU in 'gpus'" % where,
            wanted="'all', or indices, UUIDs or PCI addresses of GPUs",
            remedy="name GPUs, or leave 'gpus' out of the entry of `layout` for all of them",
            option="layout",
        ))
    refusals.extend(refusal for refusal in (configuration.refuse_filter(where, text, "layout")
                                            for text in given["device_filter"]) if refusal)
    instances = given["instances"]
    if instances and not given["enabled"]:
        refusals.append(Refusal(
            "mig.layout_without_mode",
            found="%s has instances and 'enabled': false" % where,
            wanted="no instances on a GPU whose MIG mode is off",
            remedy="leave 'enabled' or 'instances' out of the entry of `layout`",
            option="layout",
        ))
    if not given["enabled"]:
        instances = ()
    return Entry(
        where,
        tuple(word.strip() for word in given["gpus"]),
        tuple(text.lower() for text in given["device_filter"]),
        given["enabled"],
        None if instances is None else tuple(_instances(where, each, refusals) for each in instances),
    )


def _instances(where: str, given: Mapping[str, Any], refusals: List[Refusal]) -> Instances:
    """The instances, of use only where they add no refusal."""
    profile, count, start = given["profile"].strip(), given["count"], given["start"]
    word = profiles.parse(profile)
    if word is None and not profiles.is_id(profile):
        refusals.append(Refusal(
            "mig.profile_malformed",
            found="%s: the profile '%s'" % (where, profile),
            wanted="the name of a profile (1g.10gb, 1g.10gb+me), its shape (3g), its id (9), or with smaller compute "
                   "instances 1c.3g.40gb",
            remedy="correct it in `layout`; `nvidia-smi mig -lgip` lists those of a GPU",
            option="layout",
        ))
    if count < 1:
        refusals.append(Refusal(
            "mig.layout_count",
            found="%s: a 'count' of %d for '%s'" % (where, count, profile),
            wanted="1 or more",
            remedy="correct it in `layout`, or leave this profile out",
            option="layout",
        ))
    by_name = word is not None and word.compute is not None
    if start is not None and (start < 0 or count > 1 or by_name):
        refusals.append(Refusal(
            "mig.layout_start",
            found="%s: 'start' %d for '%s' with a 'count' of %d" % (where, start, profile, count),
            wanted="the first unit, from 0, of one GPU instance: those behind a name like 1c.3g.40gb are as many as "
                   "its compute instances need",
            remedy="in `layout`, give each GPU instance its own 'start', and its compute instances in 'compute'",
            option="layout",
        ))
    if given["compute"] and by_name:
        refusals.append(Refusal(
            "mig.layout_compute_twice",
            found="%s: 'compute' for '%s', whose name says it too" % (where, profile),
            wanted="compute instances said once",
            remedy="in `layout`, leave 'compute' out, or write the profile without '%dc.'" % (
                word.compute if word and word.compute else 0),
            option="layout",
        ))
    return Instances(profile, count, start, _compute(where, given["compute"], refusals))


def _compute(where: str, given: Sequence[str], refusals: List[Refusal]) -> Tuple[int, ...]:
    """Slices of compute instances that are written as '2c', '2' or 2."""
    sizes = [re.fullmatch(r"([0-9]+)c?", size.strip().lower()) for size in given]
    if not all(sizes):
        refusals.append(Refusal(
            "mig.compute_malformed",
            found="%s: 'compute': %s" % (where, ", ".join(given)),
            wanted="the slices of each compute instance, such as 1c or 2c",
            remedy="correct it in `layout`",
            option="layout",
        ))
    return tuple(sorted((int(size.group(1)) for size in sizes if size), reverse=True))
