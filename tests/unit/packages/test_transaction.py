# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ansible.builtin.apt is asked for has to be what apt simulated, and what this ansible-core's module knows."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from ansible.plugins.loader import PluginLoader, module_loader

from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import (
    builtin_options,
    install_words,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.capability_action import known_options

# What 'ansible-doc ansible.builtin.apt' of ansible-core 2.16.19 lists
OF_2_16 = ("allow_change_held_packages allow_downgrade allow_unauthenticated autoclean autoremove cache_valid_time "
           "clean deb default_release dpkg_options fail_on_autoremove force force_apt_get install_recommends "
           "lock_timeout name only_upgrade policy_rc_d purge state update_cache update_cache_retries "
           "update_cache_retry_max_delay upgrade").split()


def step(action: str = "packages.install", **parameters: Any) -> Dict[str, Any]:
    return {"action": action, "parameters": dict(parameters, request={"driver": "1:2-1", "libdriver": "2-1"})}


@pytest.fixture
def loader_of_2_16(tmp_path: Path) -> PluginLoader:
    """A loader whose apt module is documented as that of ansible-core 2.16."""
    options = "".join("  %s: {description: an option}\n" % name for name in OF_2_16)
    (tmp_path / "apt.py").write_text('DOCUMENTATION = """\nmodule: apt\noptions:\n%s"""\n' % options)
    return PluginLoader("", "", [str(tmp_path)], "library")


def test_an_old_ansible_core_is_not_asked_for_what_it_does_not_have(loader_of_2_16: PluginLoader) -> None:
    known = known_options(loader_of_2_16)
    assert known == set(OF_2_16)
    for action in ("packages.install", "packages.remove"):
        assert set(builtin_options(step(action, purge=True), known)) <= known


def test_the_running_ansible_core_is_asked_for_what_it_has() -> None:
    known = known_options(module_loader)
    assert known is not None
    options = builtin_options(step(), known)
    assert set(options) <= known
    assert ("auto_install_module_deps" in options) == ("auto_install_module_deps" in known)


@pytest.mark.parametrize("downgrade", [False, True])
def test_the_transaction_has_the_terms_of_its_simulation(downgrade: bool) -> None:
    options = builtin_options(step(allow_downgrade=downgrade))
    words = install_words({"driver": "1:2-1", "libdriver": "2-1"}, downgrade)
    assert options["name"] == words[-2:] == ["driver=1:2-1", "libdriver=2-1"]
    assert options["allow_downgrade"] == ("--allow-downgrades" in words) == downgrade
    assert options["install_recommends"] is False and "APT::Install-Recommends=no" in words
    assert not options.get("allow_change_held_packages") and not options.get("update_cache")
