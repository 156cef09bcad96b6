# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whose entry names a repository already, as apt reads the sources of a host."""
from __future__ import annotations

import subprocess
from typing import Any, Dict

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import sources
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Repository as Model
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit import (
    catalogue,
    observation,
    planner,
    policy,
)

OURS = "/etc/apt/sources.list.d/gpuops-nvidia-x.sources"
ENTRY = "deb [signed-by=/usr/share/keyrings/n.gpg] https://mirror/stable/%s /\n"
STANZA = "Types: deb\nURIs: https://mirror/stable/%s\nSuites: /\n"


@pytest.mark.parametrize("name, text, counts", [
    ("/etc/apt/sources.list", ENTRY % "deb/", True),
    ("/etc/apt/sources.list", ENTRY % "deb-other", False),
    ("/etc/apt/sources.list.d/n.list", "# " + ENTRY % "deb", False),
    ("/etc/apt/sources.list.d/n.list.save", ENTRY % "deb", False),
    ("/etc/apt/sources.list.d/n.sources", STANZA % "deb", True),
    ("/etc/apt/sources.list.d/n.sources", "Enabled: no\n" + STANZA % "deb", False),
    ("/etc/apt/sources.list.d/n.sources", "Enabled: no\n" + STANZA % "other" + "\n" + STANZA % "deb", True),
    (OURS, STANZA % "deb", False),
])
def test_an_entry_counts_as_apt_reads_it(root: Root, name: str, text: str, counts: bool) -> None:
    root.write(name, text)
    assert sources.configured_in(root.host, "https://mirror/stable/deb/", OURS) == ((name,) if counts else ())


@pytest.mark.parametrize("form", [ENTRY, STANZA])
def test_the_variable_for_the_architecture_is_this_hosts(root: Root, form: str) -> None:
    name = "/etc/apt/sources.list.d/n.%s" % ("list" if form is ENTRY else "sources")
    root.write(name, form % "$(ARCH)")
    native = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    assert sources.configured_in(root.host, "https://mirror/stable/" + native, OURS) == (name,)
    assert sources.configured_in(root.host, "https://mirror/stable/deb", OURS) == ()


def wanted(repository: Repository) -> Any:
    given: Dict[str, Any] = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    given.update(repository_url=repository.url, repository_key=repository.key.public, version="1.20.1")
    return policy.policy_of(given)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_toolkit_comes_from_our_entry_where_somebodys_is_switched_off(
    root: Root, repository: Repository, enabled: bool
) -> None:
    """Nobody else's entry brings the packages then: taken for one, the repository would have none."""
    for name in catalogue.PACKAGES:
        build(repository.directory, name, "1.20.1-1")
    repository.publish()
    root.host.write("/usr/bin/apt-get", "", mode=0o755)
    root.write("/etc/apt/keyrings/nvidia.asc", repository.key.public)
    root.write("/etc/apt/sources.list.d/nvidia.sources", Model(
        repository.url, "", str(root.path / "etc/apt/keyrings/nvidia.asc")).sources()
        + "Enabled: %s\n" % ("yes" if enabled else "no"))
    seen = observation.observe(root.host, Journal(root.host), wanted(repository), HostFacts())
    assert seen.offered == dict.fromkeys(catalogue.PACKAGES, ["1.20.1-1"])
    facts = HostFacts(hostname="gpu1", os_id="debian", os_version="12", gpus=(Gpu("0000:01:00.0", "20b2"),))
    plan = planner.plan(seen, wanted(repository), facts)
    ours = {step.subject for step in plan.steps if step.subject.startswith("/etc/apt/")}
    assert ours == {catalogue.PIN} | (set() if enabled else {catalogue.SOURCES, catalogue.KEYRING})
