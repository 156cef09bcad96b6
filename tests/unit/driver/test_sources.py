# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each source of drivers knows of itself."""
from __future__ import annotations

import ast
from pathlib import Path
from typing import Set, Tuple

import pytest
from driver_world import KEY
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import sources
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import policy_of

DRIVER = Path(str(sources.__file__)).parent
NVIDIAS = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"


@pytest.mark.parametrize("name, given, url", [
    ("nvidia_repository", "", NVIDIAS), ("nvidia_repository", "http://mirror/", "http://mirror/"),
    ("local_repository", "http://mirror/", "http://mirror/"), ("distribution", "", ""), ("preinstalled", "", ""),
])
def test_the_directory_of_a_source(name: str, given: str, url: str) -> None:
    assert sources.SOURCES[name].url(given, facts(A100)) == url


@pytest.mark.parametrize("name, key", [
    ("nvidia_repository", True), ("local_repository", True), ("distribution", False), ("preinstalled", False),
])
def test_only_what_we_configure_has_a_key(name: str, key: bool) -> None:
    assert bool(sources.SOURCES[name].key(facts(A100))) is key


@pytest.mark.parametrize("name, version, url, key, code", [
    ("runfile", "580", "", "", "driver.runfile_version_not_exact"),
    ("runfile", "", "", "", "driver.runfile_version_not_exact"),
    ("nvidia_repository", "", "", "", "driver.no_version"),
    ("local_repository", "580", "", KEY, "driver.local_repository_incomplete"),
    ("local_repository", "580", "http://mirror/", "", "driver.local_repository_incomplete"),
    ("nvidia_repository", "580", "", "", ""), ("local_repository", "580", "http://mirror/", KEY, ""),
    ("distribution", "", "", "", ""), ("preinstalled", "", "", "", ""),
])
def test_what_a_source_cannot_follow_is_refused(name: str, version: str, url: str, key: str, code: str) -> None:
    given = {"source": name, "version": version, "repository_url": url, "repository_key": key}
    if not code:
        assert policy_of(given).comes_from is sources.SOURCES[name]
        return
    with pytest.raises(GpuOpsError) as error:
        policy_of(given)
    assert error.value.code == code
    policy_of({**given, "state": "absent"})


def test_nobody_else_asks_which_source_it_is() -> None:
    asked: Set[Tuple[str, int]] = set()
    for path in DRIVER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and any(
                    isinstance(part, ast.Attribute) and part.attr == "source" for part in ast.walk(node)):
                asked.add((path.name, node.lineno))
    assert not asked
