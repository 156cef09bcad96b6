# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ansible.builtin.apt is asked for has to be what apt simulated, and what this ansible-core's module knows."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest
from ansible.plugins.loader import PluginLoader, module_loader

from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.manager import APT
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import (
    builtin_options,
    command_words,
    install_words,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf.manager import DNF
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.capability_action import (
    MODULES,
    MOST_ROUNDS,
    CapabilityAction,
    known_options,
)

DRIVER = "gpuops.nvidia.gpu_driver"
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


@pytest.mark.parametrize("downgrade", [False, True])
def test_what_leaves_by_name_while_others_come_is_asked_of_apt_itself(downgrade: bool) -> None:
    exchange = {"action": "packages.install", "parameters": {
        "request": {"driver": "1:2-1", "old-module": None}, "allow_downgrade": downgrade}}
    words = command_words(exchange)
    assert APT.builtin_module(exchange) == "command" and APT.builtin_options(exchange) == {"argv": words}
    assert words[0] == "apt-get"
    assert words[-len(install_words({}, downgrade)) - 2:] == [
        *install_words({}, downgrade), "driver=1:2-1", "old-module-"], "the terms of its simulation"
    for option in builtin_options(step())["dpkg_options"].split(","):
        assert "Dpkg::Options::=--" + option in words
    removal = {"action": "packages.remove", "parameters": {"request": {"driver": None}}}
    assert [APT.builtin_module(each) for each in (step(), removal)] == ["apt", "apt"]
    assert MODULES["command"] == "ansible.legacy.command"


class Endless(CapabilityAction):
    """Between an action plugin and a host that asks for another package step each time."""

    def __init__(self, module_loader: PluginLoader) -> None:
        task = SimpleNamespace(action=DRIVER, args={}, async_val=0, check_mode=False, environment=[], no_log=False)
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nowhere"))
        super().__init__(task, connection, None, None, None, SimpleNamespace(module_loader=module_loader))
        self.calls: List[Dict[str, Any]] = []

    def _execute_module(self, module_name: Any = None, module_args: Any = None, **_more: Any) -> Dict[str, Any]:
        self.calls.append(dict(module_args, module=module_name))
        if module_name.endswith(".apt"):
            return {"changed": True}
        number = len(self.calls)
        return {"changed": True, "applied": ["step %d" % number], "plan": {},
                "awaiting": dict(step(), id="driver/packages.install/%d" % number)}

    def _remove_tmp_path(self, tmp_path: Any, force: bool = False) -> None:
        pass


def test_a_transaction_that_was_given_up_names_the_package_manager_that_is_still_at_work() -> None:
    class GivenUp(Endless):
        def _execute_module(self, module_name: Any = None, module_args: Any = None, **more: Any) -> Dict[str, Any]:
            if module_name.endswith(".apt"):
                return {"failed": True, "msg": "Failed to lock apt for exclusive operation"}
            if module_args.get("transaction_failed"):
                return {"left_at_work": "unattended-upgr (process 77, there for 11 min 3 s)"}
            return super()._execute_module(module_name, module_args, **more)

    result = GivenUp(module_loader).run(task_vars={})
    assert result["failed"] and "for exclusive operation; a package manager is at work: unattended-upgr (process 77, " \
        "there for 11 min 3 s)" in result["msg"]


def test_a_failed_transaction_is_told_with_what_the_host_has_to_say_of_it() -> None:
    class NotConfigured(Endless):
        def _execute_module(self, module_name: Any = None, module_args: Any = None, **more: Any) -> Dict[str, Any]:
            if module_name.endswith(".apt"):
                return {"failed": True, "msg": "dpkg returned an error code (1)"}
            if module_args.get("transaction_failed"):
                return {"why_failed": "make.log: nv-pci.c:237:9: error: too few arguments"}
            return super()._execute_module(module_name, module_args, **more)

    result = NotConfigured(module_loader).run(task_vars={})
    assert result["found"] == "dpkg returned an error code (1); make.log: nv-pci.c:237:9: error: too few arguments"


def test_a_host_that_never_comes_to_an_end_is_no_success() -> None:
    action = Endless(module_loader)
    result = action.run(task_vars={})
    assert result["failed"] and result["changed"] and "something on the host undoes them" in result["msg"]
    assert [call["module"] for call in action.calls[:-1]] == [DRIVER, MODULES["apt"]] * MOST_ROUNDS
    # the last transaction is accounted for, and the host's lock given back
    last = action.calls[-1]
    assert last["transaction_failed"] and last["resumed_step"] == result["failed_step"]["id"]
    assert len(result["applied"]) == MOST_ROUNDS


def test_a_step_of_dnf_is_done_by_its_module_in_every_supported_release() -> None:
    known = known_options(module_loader, MODULES["dnf"])
    assert known is not None
    wanted = {"action": "packages.install", "parameters": {
        "manager": "dnf", "request": {"nvidia-driver-cuda": "3:580.178.04-1.el9"}, "allow_downgrade": True}}
    options = DNF.builtin_options(wanted, known)
    assert options is not None and set(options) <= known
    assert options["name"] == ["nvidia-driver-cuda-3:580.178.04-1.el9"]
    assert options["allow_downgrade"] is True
