# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The toolkit's plan on hosts of every kind, and its configuration file."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import restore_steps, write_file
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.toolkit import (
    catalogue,
    configuration,
    executors,
    observation,
    planner,
    policy,
)

URL = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
OFFERED = ["1.20.1-1", "1.20.0-1", "1.19.1-1", "1.18.0-1"]
FACTS = HostFacts(os_id="debian", os_version="12")
SAFE = {
    ("accept-nvidia-visible-devices-envvar-when-unprivileged",): False,
    ("nvidia-container-runtime", "mode"): "cdi",
    ("nvidia-container-runtime", "runtimes"): ["/usr/sbin/runc"],
}


def wish(**changes: Any) -> policy.ToolkitPolicy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, **changes))


def bare(**changes: Any) -> observation.ToolkitObservation:
    return replace(
        observation.ToolkitObservation(
            apt=True,
            installed=dict.fromkeys(catalogue.PACKAGES),
            url=URL,
            configured_in="",
            sources=None,
            key=None,
            pin=None,
            wanted_key="key\n",
            offered={name: list(OFFERED) for name in catalogue.PACKAGES},
            configuration=None,
            settings=dict(configuration.DEFAULTS),
            runtimes=("/usr/sbin/runc",),
        ),
        **changes,
    )


def converged(version: str = "1.20.1-1", **changes: Any) -> observation.ToolkitObservation:
    return replace(
        bare(
            installed=dict.fromkeys(catalogue.PACKAGES, version),
            sources=observation.sources_text(URL, catalogue.REPOSITORY_KEY),
            key="key\n",
            pin=planner.pin_text(version),
            wanted_key="",
            offered=None,
            configuration="",
            settings=dict(SAFE),
        ),
        **changes,
    )


def actions(made: Any) -> List[str]:
    return ["%s %s" % (step.action, step.subject) for step in made.steps]


def test_a_bare_host_gets_repository_settings_and_packages_in_this_order() -> None:
    made = planner.plan(bare(), wish(), FACTS)
    assert actions(made) == [
        "file.write " + catalogue.KEYRING,
        "file.write " + catalogue.SOURCES,
        "file.write " + catalogue.PIN,
        "file.write " + catalogue.CONFIGURATION,
        "packages.install container toolkit 1.20.1-1",
    ]
    assert dict(made.steps[-1].change["after"]) == dict.fromkeys(catalogue.PACKAGES, "1.20.1-1")
    assert set(made.steps[-1].after) == {step.id for step in made.steps[:-1]}
    assert planner.facts_after(bare(), wish(), FACTS, made).toolkit == "1.20.1"


def test_a_converged_host_has_nothing_to_do() -> None:
    assert planner.plan(converged(), wish(), FACTS).steps == ()


def test_settings_that_somebody_changed_come_back_with_his_comments() -> None:
    text = "# by hand\n[nvidia-container-runtime]\nmode = \"legacy\" # for now\nlog-level = \"debug\"\n"
    seen = converged(configuration=text, settings=configuration.read_settings("f", text))
    (step,) = planner.plan(seen, wish(), FACTS).steps
    assert "# by hand" in step.change["after"]
    assert "# for now" in step.change["after"]
    assert 'log-level = "debug"' in step.change["after"]
    assert configuration.read_settings("f", step.change["after"]) == SAFE


def test_a_list_of_runtimes_that_somebody_chose_stays() -> None:
    chosen = dict(SAFE)
    chosen[configuration.RUNTIMES] = ["/opt/crun"]
    assert planner.plan(converged(settings=chosen), wish(), FACTS).steps == ()
    made = planner.plan(converged(settings=chosen), wish(low_level_runtimes=["/usr/bin/runc"]), FACTS)
    assert actions(made) == ["file.write " + catalogue.CONFIGURATION]


def test_a_repository_that_somebody_configured_is_used_and_left_alone() -> None:
    made = planner.plan(bare(configured_in="/etc/apt/sources.list.d/nvidia.list"), wish(), FACTS)
    assert catalogue.SOURCES not in str(actions(made))
    assert catalogue.KEYRING not in str(actions(made))
    assert made.notes


@pytest.mark.parametrize(("seen", "changes", "facts", "told"), [
    (bare(), {"version": "1.21.0"}, FACTS, "1.20.1-1, 1.20.0-1"),
    (bare(offered=dict(dict.fromkeys(catalogue.PACKAGES, OFFERED), libnvidia_container1=[])), {"version": "1.20.1"},
     FACTS, "libnvidia_container1: none"),
    (converged("1.20.1-1", offered=dict.fromkeys(catalogue.PACKAGES, OFFERED)), {"version": "1.19.1"}, FACTS,
     "nvidia-container-toolkit 1.20.1-1"),
    (bare(apt=False), {}, FACTS, "no apt"),
    (bare(), {}, FACTS.but(immutable="/run/ostree-booted"), "/run/ostree-booted"),
    (bare(), {"source": "preinstalled"}, FACTS, "no nvidia-ctk"),
    (bare(), {"source": "preinstalled"}, FACTS.but(toolkit="1.18.0"), "CVE-2026-24260"),
])
def test_what_cannot_be_is_refused(
    seen: observation.ToolkitObservation, changes: Dict[str, Any], facts: HostFacts, told: str
) -> None:
    made = planner.plan(seen, wish(**changes), facts)
    assert made.steps == ()
    assert told in made.refusals[0].found


def test_a_downgrade_is_done_when_allowed() -> None:
    seen = converged(offered=dict.fromkeys(catalogue.PACKAGES, OFFERED))
    made = planner.plan(seen, wish(version="1.19.1", allow_downgrade=True), FACTS)
    packages = made.steps[-2]
    assert packages.subject == "container toolkit 1.19.1-1"
    assert packages.parameters["allow_downgrade"] is True


@pytest.mark.parametrize("changes", [
    {"version": "1.18.0"}, {"version": "1.19.0-1"}, {"version": "latest"}, {"version": "1.20"},
    {"low_level_runtimes": ["runc"]},
])
def test_contradictory_options_are_refused(changes: Dict[str, Any]) -> None:
    with pytest.raises(GpuOpsError):
        wish(**changes)


def test_a_vulnerable_version_is_accepted_when_the_risk_is() -> None:
    assert wish(version="1.18.0", allow_vulnerable=True).version == "1.18.0"


def test_a_broken_file_is_named_with_its_line() -> None:
    with pytest.raises(GpuOpsError) as caught:
        configuration.read_settings("/etc/c.toml", "a = 1\n[b\n")
    assert caught.value.details["line"] == 2


def test_the_file_comes_back_as_it_was(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    journal = Journal(host)
    text = "# mine\n[nvidia-container-runtime]\nmode = 'legacy'\n"
    host.write(catalogue.CONFIGURATION, text)
    (step,) = planner.plan(
        converged(configuration=text, settings=dict(configuration.read_settings("f", text))), wish(), FACTS
    ).steps
    write_file(host, journal, step)
    assert host.read(catalogue.CONFIGURATION) != text
    (back,) = restore_steps("toolkit", host, journal)
    journal.restore(back.subject)
    assert host.read(catalogue.CONFIGURATION) == text


COMMENTED = "# by hand\n[nvidia-container-runtime]\nmode = \"cdi\" # agreed\n"


@pytest.mark.parametrize("installed", [None, "1.19.1-1"])
def test_comments_are_carried_over_the_packages(installed: Any, tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    journal = Journal(host)
    host.write(catalogue.CONFIGURATION, COMMENTED)
    seen = bare(installed=dict.fromkeys(catalogue.PACKAGES, installed), configuration=COMMENTED,
                settings=configuration.read_settings("f", COMMENTED))
    made = planner.plan(seen, wish(), FACTS)
    write, kept, packages, back = made.steps[-4:]
    assert [step.action for step in (write, kept, packages, back)] == [
        "file.write", "settings.keep", "packages.install", "settings.put_back"]
    write_file(host, journal, write)
    executors.keep(host, journal, kept)

    # Killed while the packages come, after the script has written the file anew: the next plan still has the text.
    host.write(catalogue.CONFIGURATION, '#accept = true\n[nvidia-container-runtime]\nmode = "cdi"\n')
    waiting = journal.recall("toolkit")[observation.KEPT]
    half = replace(seen, configuration=host.read(catalogue.CONFIGURATION), kept=waiting,
                   settings=configuration.read_settings("f", waiting))
    again = planner.plan(half, wish(), FACTS).steps
    assert [step.action for step in again[-2:]] == ["packages.install", "settings.put_back"]
    assert "settings.keep" not in [step.action for step in again]
    assert again[-1].change == back.change

    executors.put_back(host, journal, again[-1])
    text = host.read(catalogue.CONFIGURATION) or ""
    assert "# by hand" in text and "# agreed" in text
    assert configuration.read_settings("f", text) == SAFE
    assert journal.recall("toolkit") == {}


@pytest.mark.parametrize(("installed", "kept"), [(None, False), ("1.19.1-1", True)])
def test_a_file_that_we_made_is_completed_by_the_first_install_and_kept_by_an_upgrade(
    installed: Any, kept: bool
) -> None:
    seen = bare(configuration="", created=True, settings=dict(SAFE),
                installed=dict.fromkeys(catalogue.PACKAGES, installed))
    assert ("settings.keep " + catalogue.CONFIGURATION in actions(planner.plan(seen, wish(), FACTS))) is kept


def test_every_known_vulnerability_of_a_version_is_named() -> None:
    assert policy.vulnerabilities("1.17.3") == ("CVE-2026-24260", "CVE-2025-23267", "CVE-2025-23266", "CVE-2025-23359")
    assert policy.vulnerabilities("1.19.1") == ()


def test_an_ldconfig_of_the_container_is_refused() -> None:
    text = '[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n'
    with pytest.raises(GpuOpsError, match="starts with '@'"):
        configuration.read_settings("f", text)
    configuration.read_settings("f", text + "[features]\nallow-ldconfig-from-container = true\n")
    configuration.read_settings("f", text.replace('"/', '"@/'))
