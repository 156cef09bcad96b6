# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One transaction in two forms: words for apt-get, which simulates it, and does it where no controller is; options of
ansible.builtin.apt, which does it otherwise.

A transaction that installs and takes away at once (a request with a version of None) is more than that module can be
asked for: ansible.builtin.command has apt-get do it, in the words of that module. So it has dpkg remove packages while
others that stay are half done: of these apt wants every dependency there before it removes anything.

Both are made here, so that what was simulated is what is done. Pure; the controller imports it too.
"""
from __future__ import annotations

from typing import Any, Collection, Dict, Iterable, List, Mapping, Optional

LOCK_SECONDS = 600
# Options of ansible.builtin.apt that not every supported release has, and that may be left out where it has them not:
# auto_install_module_deps came with ansible-core 2.19. The planner refuses a host without python3-apt anyway.
DISPENSABLE = ("auto_install_module_deps",)
# Of a removal: whether dpkg does it
BY_DPKG = "by_dpkg"
# The answers that dpkg gives itself to what it would ask about configuration files
ANSWERS = ("--force-confdef", "--force-confold")


def words(request: Mapping[str, Optional[str]]) -> List[str]:
    """'NAME=VERSION' of what is to come, 'NAME-' of what is to leave (apt-get(8), install)."""
    return ["%s-" % name if version is None else "%s=%s" % (name, version)
            for name, version in sorted(request.items())]


def is_command(step: Mapping[str, Any]) -> bool:
    """Whether a package step is more than ansible.builtin.apt can be asked for."""
    parameters = step["parameters"]
    return bool(parameters.get(BY_DPKG)) or (
        step["action"] == "packages.install" and None in parameters["request"].values())


def command_words(step: Mapping[str, Any]) -> List[str]:
    """dpkg, or apt-get with the options under which ansible.builtin.apt calls it."""
    if step["parameters"].get(BY_DPKG):
        return ["dpkg", *ANSWERS, *dpkg_words(step, step["parameters"]["request"])]
    return ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=%d" % LOCK_SECONDS, *apt_words(
        step, step["parameters"]["request"])]


def dpkg_words(step: Mapping[str, Any], names: Iterable[str]) -> List[str]:
    """Words behind dpkg. names: packages to remove."""
    return ["--purge" if step["parameters"].get("purge") else "--remove", *sorted(names)]


def apt_words(step: Mapping[str, Any], names: Iterable[str]) -> List[str]:
    """Words behind apt-get. names: packages to remove, of a removal."""
    parameters = step["parameters"]
    options = [word for answer in ANSWERS for word in ("-o", "Dpkg::Options::=" + answer)]
    if step["action"] == "packages.remove":
        return [*options, "-y", *(["--purge"] if parameters.get("purge") else []), "remove", *sorted(names)]
    return [*options, *install_words(parameters["request"], bool(parameters.get("allow_downgrade")))]


def install_words(request: Mapping[str, Optional[str]], allow_downgrade: bool) -> List[str]:
    """Words behind apt-get, as ansible.builtin.apt writes them: -y makes apt refuse what it would ask about."""
    options = ["-y", "-o", "APT::Install-Recommends=no"] + (["--allow-downgrades"] if allow_downgrade else [])
    return [*options, "install", *words(request)]


def builtin_options(step: Mapping[str, Any], known: Optional[Collection[str]] = None) -> Dict[str, Any]:
    """Options of ansible.builtin.apt for a package step.

    known: the options that the module in use has, None when they cannot be told.
    The index is not read here: our own list was renewed on the host before (see provenance.opened), and a broken
    source of somebody else would make the module fail.
    """
    parameters = step["parameters"]
    request = parameters["request"]
    options: Dict[str, Any] = {
        "lock_timeout": LOCK_SECONDS,
        "auto_install_module_deps": False,
        "dpkg_options": "force-confdef,force-confold",
    }
    if known is not None:
        options = {name: value for name, value in options.items() if name in known or name not in DISPENSABLE}
    if step["action"] == "packages.remove":
        return dict(options, name=sorted(request), state="absent", purge=bool(parameters.get("purge")))
    return dict(
        options,
        name=words(request),
        state="present",
        install_recommends=False,
        allow_downgrade=bool(parameters.get("allow_downgrade")),
    )
