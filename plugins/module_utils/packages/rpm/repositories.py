# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files of repositories (.repo), which dnf and zypper read in one form: an INI section for each (dnf.conf(5))."""
from __future__ import annotations

import configparser
import re
from typing import Dict, Mapping, Tuple

from ...core.host import Host
from ...core.steps import managed
from ..model import Repository

# What dnf and zypper take for 'no'
_NO = ("0", "no", "false", "off")
_BEFORE_HOST = re.compile(r"://[^/@]*@")


def text(repository: Repository, more: Mapping[str, str]) -> str:
    """The file of one repository. Packages are always checked with the key, the index where it is signed.

    more: options that only one package manager knows.
    """
    options = {
        "name": repository.id,
        "baseurl": repository.uri,
        "enabled": "1",
        "gpgcheck": "1",
        "repo_gpgcheck": "1" if repository.metadata_signed else "0",
        "gpgkey": "file://" + repository.keyring,
        **more,
    }
    return managed("[%s]\n%s" % (repository.id, "".join("%s=%s\n" % item for item in options.items())))


def parse(content: str) -> Dict[str, Dict[str, str]]:
    """{id: options} of a file; empty for one that is no INI file, which the package managers pass over."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(content)
    except configparser.Error:
        return {}
    return {section: dict(parser.items(section)) for section in parser.sections()}


def configured_in(
    host: Host, directories: Tuple[str, ...], uri: str, ours: str, variables: Mapping[str, str]
) -> Tuple[str, ...]:
    """Files other than ours in which an enabled repository has this address.

    variables: {name: value} of what stands for '$name' and '${name}' in addresses (releasever, basearch ...).
    """
    if not uri:
        return ()
    found = []
    for above in directories:
        for name in host.list(above):
            path = "%s/%s" % (above, name)
            if path != ours and name.endswith(".repo") and _names(host.read(path) or "", uri, variables):
                found.append(path)
    return tuple(found)


def expanded(address: str, variables: Mapping[str, str]) -> str:
    """An address without variables; one that is not known stays."""
    return re.sub(r"\$\{(\w+)\}|\$(\w+)",
                  lambda found: variables.get(found.group(1) or found.group(2), found.group(0)), address)


def _names(content: str, uri: str, variables: Mapping[str, str]) -> bool:
    for options in parse(content).values():
        if options.get("enabled", "1").strip().lower() in _NO:
            continue
        addresses = re.split(r"[\s,]+", options.get("baseurl", ""))
        bare = [_BEFORE_HOST.sub("://", expanded(address, variables)).rstrip("/") for address in addresses]
        if uri.rstrip("/") in bare:
            return True
    return False
