# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What zypper is asked to do, in the same words whether it only says what it would do or does it. Pure.

No words are left to the host's configuration that decide what comes and goes. Where another package must go for one
that comes (the other kernel module), the simulation has named it, and the planner has judged it. Licences of packages
are agreed to, as there is nobody to ask; no key is taken that rpm does not trust already.
"""
from __future__ import annotations

from types import MappingProxyType
from typing import List, Mapping, Optional

from ...core.plan import Step
from ...core.steps import PACKAGES_REMOVE
from ..model import Package
from ..rpm import database

_NONE: Mapping[str, str] = MappingProxyType({})


def specs(request: Mapping[str, Optional[str]], files: Mapping[str, str] = _NONE) -> List[str]:
    """'name=version' with its epoch and, of what is not the system's own, its architecture.

    files: {package: path} of those that come from a file on the host.
    """
    return [files[name] if name in files else _spec(name, version) for name, version in sorted(request.items())]


def _spec(name: str, version: Optional[str]) -> str:
    if version is None:
        return name
    return "%s=%s" % (database.without_version(name, version), version)


def install_words(
    request: Mapping[str, Optional[str]], allow_downgrade: bool, there: Mapping[str, Package], only_say: bool = False,
    files: Mapping[str, str] = _NONE
) -> List[str]:
    """Without --oldpackage a newer package stays as it is, and zypper says so. Everything is fetched before anything
    changes.

    request: what is to have no version leaves with the transaction; where it is not there, that is no error.
    there: the packages of this host, which tell one of several versions of a name.
    only_say: to say what it would do. Options come before names: behind them a dash makes a removal of a word.
    """
    comes = {name: version for name, version in request.items() if version is not None}
    return ["install", *_said(only_say), "--name", "--no-recommends", "--auto-agree-with-licenses",
            "--force-resolution", "--download", "in-advance", *(["--oldpackage"] if allow_downgrade else []),
            *specs(comes, files), *("!" + _told_apart(name, there[name].version)
                                    for name in sorted(set(request).difference(comes)) if name in there)]


def _told_apart(name: str, version: str) -> str:
    return name if database.without_version(name, version) == name else _spec(name, version)


def remove_words(request: Mapping[str, Optional[str]], only_say: bool = False) -> List[str]:
    """What is not asked for by its own reason stays: what nobody needs any more is for the administrator to remove."""
    return ["remove", *_said(only_say), "--name", "--no-clean-deps", "--force-resolution", *specs(request)]


def words(step: Step, there: Mapping[str, Package], only_say: bool = False) -> List[str]:
    """Of a package step; there: the packages of this host."""
    request = step.parameters["request"]
    if step.action == PACKAGES_REMOVE:
        return remove_words(request, only_say)
    return install_words(request, bool(step.parameters.get("allow_downgrade")), there, only_say,
                         step.parameters.get("files", _NONE))


def _said(only_say: bool) -> List[str]:
    return ["--dry-run"] if only_say else []
