# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One transaction in two forms: what dnf's library is asked to simulate, and to do where no controller is, and options
of ansible.builtin.dnf, which does it otherwise.

Both are made here, so that what was simulated is what is done. Pure; the controller imports it too.
"""
from __future__ import annotations

from types import MappingProxyType
from typing import Any, Collection, Dict, List, Mapping, Optional

from ..model import EVERY
from ..rpm import database
from .locks import full

LOCK_SECONDS = 600
# Options that not every supported release of ansible.builtin.dnf has, and that may be left out there
DISPENSABLE = ("lock_timeout",)
_NONE: Mapping[str, str] = MappingProxyType({})


def specs(request: Mapping[str, Optional[str]], files: Mapping[str, str] = _NONE) -> List[str]:
    """What dnf is asked for: name, epoch, version, release, and the architecture of what is not the system's own.

    files: {package: path} of those that it installs from a file on the host.
    """
    return [files[name] if name in files else _spec(name, version) for name, version in sorted(request.items())]


def _spec(name: str, version: Optional[str]) -> str:
    if version is None:
        return name
    bare = database.bare_name(name)
    arch = name[len(bare):]
    return "%s-%s%s" % (database.without_version(bare, version), full(version), arch)


def question(step: Mapping[str, Any]) -> Dict[str, Any]:
    """What program.TEXT is asked for a package step ('transact'), under the options below."""
    parameters = step["parameters"]
    if step["action"] == "packages.remove":
        return {"specs": [], "removes": specs(parameters["request"]), "allow_downgrade": False, "without": [EVERY]}
    return {"specs": specs(parameters["request"], parameters.get("files", _NONE)), "removes": [],
            "allow_downgrade": bool(parameters.get("allow_downgrade")), "without": list(parameters.get("without", ()))}


def builtin_options(step: Mapping[str, Any], known: Optional[Collection[str]] = None) -> Dict[str, Any]:
    """Options of ansible.builtin.dnf for a package step.

    known: the options that the module in use has, None when they cannot be told.
    Without allow_downgrade the module leaves a newer package as it is, and says nothing. Where another package must go
    for one that comes (the other kernel module), the simulation has named it, and the planner has judged it. What is
    not asked for by its own reason stays: autoremove is for the administrator.
    """
    parameters = step["parameters"]
    words = specs(parameters["request"], parameters.get("files", _NONE))
    options: Dict[str, Any] = {
        "name": words,
        "lock_timeout": LOCK_SECONDS,
        "disablerepo": list(parameters.get("without", ())),
    }
    if known is not None:
        options = {name: value for name, value in options.items() if name in known or name not in DISPENSABLE}
    if step["action"] == "packages.remove":
        # It takes nothing from any of them, and would end at the first that cannot be read
        return dict(options, state="absent", autoremove=False, disablerepo=[EVERY])
    return dict(
        options,
        state="present",
        allow_downgrade=bool(parameters.get("allow_downgrade")),
        allowerasing=True,
        nobest=False,
        install_weak_deps=False,
    )
