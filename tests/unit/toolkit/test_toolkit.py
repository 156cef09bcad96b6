# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The toolkit's plan on hosts of every kind, and its configuration file."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Kept, Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import (
    file_step,
    restore_steps,
    write_file,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Simulation
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit import (
    catalogue,
    configuration,
    executors,
    observation,
    planner,
    policy,
    rewriting,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.toolkit.judge import judge

URL = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
OFFERED = ["1.20.1-1", "1.20.0-1", "1.19.1-1", "1.18.0-1"]
FACTS = HostFacts(os_id="debian", os_version="12")
SAFE = {
    ("accept-nvidia-visible-devices-envvar-when-unprivileged",): False,
    ("nvidia-container-runtime", "mode"): "cdi",
    ("nvidia-container-runtime", "runtimes"): ["/usr/sbin/runc"],
}


def policy_with(**changes: Any) -> policy.Policy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, **changes))


def bare(**changes: Any) -> observation.Observation:
    return replace(
        observation.Observation(
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
            executable=("/usr/sbin/runc",),
        ),
        **changes,
    )


def planned(seen: observation.Observation, wanted: policy.Policy, facts: HostFacts) -> Plan:
    """The plan with what apt says of it: the four packages come, and nothing with them."""
    version = observation.version_of(seen.installed, seen.offered, wanted.version)
    request = {name: version for name, have in seen.installed.items() if version and have != version}
    if request and seen.transaction is None:
        before = {name: have for name, have in seen.installed.items() if name in request and have}
        seen = replace(seen, transaction=Simulation(request, (), before=before, request=request,
                                                    allow_downgrade=wanted.allow_downgrade))
    return planner.plan(seen, wanted, facts)


def converged(version: str = "1.20.1-1", **changes: Any) -> observation.Observation:
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


def covers(text: str, settings: Dict[Any, Any]) -> bool:
    found = configuration.read_settings("f", text)
    return all(found[key] == value for key, value in settings.items())


class WithToolkit(Host):
    """A host whose nvidia-ctk rewrites every configuration to this text."""

    def __init__(self, root: str, rewriting: str) -> None:
        super().__init__(root)
        self.rewriting = rewriting

    def which(self, program: str) -> Optional[str]:
        return "/usr/bin/nvidia-ctk" if program == "nvidia-ctk" else super().which(program)

    def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
        assert list(argv[:3]) == ["nvidia-ctk", "--quiet", "config"]
        return CommandResult(argv, 0, self.rewriting, "")


def actions(made: Any) -> List[str]:
    return ["%s %s" % (step.action, step.subject) for step in made.steps]


def write_of(host: Host, journal: Journal, before: Optional[str], after: str) -> None:
    step = file_step("toolkit", catalogue.CONFIGURATION, before, after, "")
    journal.note("started", step, "p")
    executors.write(host, journal, step)
    journal.note("done", step, "p")


def test_whose_list_it_is_is_known_from_the_journal(tmp_path: Path) -> None:
    host, mine = Host(str(tmp_path)), '[nvidia-container-runtime]\nruntimes = ["/opt/runc"]\n'
    journal = Journal(host)
    host.write(catalogue.CONFIGURATION, mine)
    changed = mine + 'mode = "cdi"\n'
    write_of(host, journal, mine, changed)
    assert not observation._is_ours(observation._writes(journal), ["/opt/runc"])
    write_of(host, journal, changed, changed.replace("/opt", "/usr/sbin"))
    assert observation._is_ours(observation._writes(journal), ["/usr/sbin/runc"])
    assert not observation._is_ours(observation._writes(journal), ["/opt/runc"])


def test_a_file_that_changed_after_the_plan_is_not_written(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    host.write(catalogue.CONFIGURATION, "# somebody's\n")
    with pytest.raises(GpuOpsError, match="another program"):
        write_of(host, Journal(host), "", "x = 1\n")
    assert host.read(catalogue.CONFIGURATION) == "# somebody's\n"


@pytest.mark.parametrize(("seen", "changes", "facts", "told"), [
    (bare(), {"version": "1.21.0"}, FACTS, "1.20.1-1, 1.20.0-1"),
    (bare(offered=dict(dict.fromkeys(catalogue.PACKAGES, OFFERED), libnvidia_container1=[])), {"version": "1.20.1"},
     FACTS, "libnvidia_container1: none"),
    (converged("1.20.1-1", offered=dict.fromkeys(catalogue.PACKAGES, OFFERED)), {"version": "1.19.1"}, FACTS,
     "nvidia-container-toolkit 1.20.1-1"),
    (bare(apt=False), {}, FACTS, "no apt"),
    (converged("1.20.1-1~mine1", offered=dict.fromkeys(catalogue.PACKAGES, ["1.20.1-0"])), {"version": "1.20.1-0"},
     FACTS, "1.20.1-1~mine1"),
    (bare(bindings=False), {}, FACTS, "no python3-apt"),
    (bare(installed=dict.fromkeys(catalogue.PACKAGES, "1.19.1-1"), held={"libnvidia-container1": "1.19.1-1"},
          transaction=Simulation({}, (), "E: Held packages were changed", held=("libnvidia-container1",))), {}, FACTS,
     "libnvidia-container1 1.19.1-1"),
    (bare(transaction=Simulation({}, ("docker-ce",))), {}, FACTS, "apt would remove docker-ce"),
    (bare(), {}, FACTS.but(immutable="/run/ostree-booted"), "/run/ostree-booted"),
    (bare(), {"source": "preinstalled"}, FACTS, "no `nvidia-ctk`"),
    (bare(), {"source": "preinstalled"}, FACTS.but(toolkit="1.18.0"), "CVE-2026-24260"),
])
def test_what_cannot_be_is_refused(
    seen: observation.Observation, changes: Dict[str, Any], facts: HostFacts, told: str
) -> None:
    made = planned(seen, policy_with(**changes), facts)
    assert made.steps == ()
    assert told in made.refusals[0].found


@pytest.mark.parametrize("changes", [
    {"version": "1.18.0"}, {"version": "1.19.0-1"}, {"version": "latest"}, {"version": "1.20"},
    {"low_level_runtimes": ["runc"]},
])
def test_contradictory_options_are_refused(changes: Dict[str, Any]) -> None:
    with pytest.raises(GpuOpsError):
        policy_with(**changes)


def test_a_vulnerable_version_is_accepted_when_the_risk_is() -> None:
    assert policy_with(version="1.18.0", allow_vulnerable=True).version == "1.18.0"


def test_a_broken_file_is_named_with_its_line() -> None:
    with pytest.raises(GpuOpsError) as caught:
        configuration.read_settings("/etc/c.toml", "a = 1\n[b\n")
    assert caught.value.details["line"] == 2


def test_the_file_comes_back_as_it_was(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    journal = Journal(host)
    text = "# mine\n[nvidia-container-runtime]\nmode = 'legacy'\n"
    host.write(catalogue.CONFIGURATION, text)
    (step,) = planned(
        converged(configuration=text, settings=dict(configuration.read_settings("f", text))), policy_with(), FACTS
    ).steps
    write_file(host, journal, step)
    assert host.read(catalogue.CONFIGURATION) != text
    (back,) = restore_steps("toolkit", host, journal)
    journal.restore(back.subject)
    assert host.read(catalogue.CONFIGURATION) == text


REWRITTEN = '#accept = true\n[nvidia-container-runtime]\nmode = "cdi"\n'
COMMENTED = "# by hand\n[nvidia-container-runtime]\nmode = \"cdi\" # agreed\n"


@pytest.mark.parametrize("installed", [None, "1.19.1-1"])
def test_comments_are_carried_over_the_packages(installed: Any, tmp_path: Path) -> None:
    host = WithToolkit(str(tmp_path), REWRITTEN)
    journal = Journal(host)
    host.write(catalogue.CONFIGURATION, COMMENTED)
    seen = bare(installed=dict.fromkeys(catalogue.PACKAGES, installed), configuration=COMMENTED,
                settings=configuration.read_settings("f", COMMENTED))
    made = planned(seen, policy_with(), FACTS)
    write, kept, packages, back = made.steps[-4:]
    assert [step.action for step in (write, kept, packages, back)] == [
        "file.write", "settings.keep", "packages.install", "settings.put_back"]
    write_file(host, journal, write)
    executors.keep(host, journal, kept)

    # Killed while the packages come, after the script has written the file anew: the next plan still has the text.
    host.write(catalogue.CONFIGURATION, REWRITTEN)
    waiting = journal.recall("toolkit")[observation.KEPT]
    half = replace(seen, configuration=host.read(catalogue.CONFIGURATION), kept=waiting,
                   settings=configuration.read_settings("f", waiting))
    again = planned(half, policy_with(), FACTS).steps
    assert [step.action for step in again[-2:]] == ["packages.install", "settings.put_back"]
    assert "settings.keep" not in [step.action for step in again]
    assert again[-1].change == back.change

    executors.put_back(host, journal, again[-1])
    text = host.read(catalogue.CONFIGURATION) or ""
    assert "# by hand" in text and "# agreed" in text
    assert covers(text, SAFE)
    assert journal.recall("toolkit") == {}


def test_an_edit_after_a_killed_run_stays(tmp_path: Path) -> None:
    host = WithToolkit(str(tmp_path), REWRITTEN)
    journal = Journal(host)
    journal.remember("toolkit", {observation.KEPT: COMMENTED})
    edited = "# by the night shift\n" + COMMENTED.replace('"cdi"', '"legacy"')
    assert rewriting.is_rewritten(host, REWRITTEN, COMMENTED) and rewriting.is_rewritten(host, COMMENTED, COMMENTED)
    assert not rewriting.is_rewritten(host, edited, COMMENTED)

    host.write(catalogue.CONFIGURATION, edited)
    seen = converged(superseded=True, configuration=edited, settings=configuration.read_settings("f", edited))
    made = planned(seen, policy_with(), FACTS)
    assert [step.action for step in made.steps] == ["file.write", "settings.put_back"]
    assert made.kept == (Kept(catalogue.CONFIGURATION, made.kept[0].why),) and "carried over" in made.kept[0].why
    for step in made.steps:
        executors.EXECUTORS[step.action](host, journal, step)
    text = host.read(catalogue.CONFIGURATION) or ""
    assert "# by the night shift" in text and "# agreed" in text and covers(text, SAFE)
    assert observation.KEPT not in journal.recall("toolkit")

    upgrade = replace(seen, installed=dict.fromkeys(catalogue.PACKAGES, "1.19.1-1"),
                      offered=dict.fromkeys(catalogue.PACKAGES, OFFERED))
    assert [step.action for step in planned(upgrade, policy_with(), FACTS).steps][-4:] == [
        "file.write", "settings.keep", "packages.install", "settings.put_back"]


def test_an_edit_while_the_packages_come_stays(tmp_path: Path) -> None:
    host = WithToolkit(str(tmp_path), REWRITTEN)
    journal = Journal(host)
    journal.remember("toolkit", {observation.KEPT: COMMENTED})
    host.write(catalogue.CONFIGURATION, "# mine\n")
    executors.put_back(host, journal, planner._put_back(COMMENTED, ()))
    assert (host.read(catalogue.CONFIGURATION), journal.recall("toolkit")) == ("# mine\n", {})


def test_further_settings_are_written_by_either_way_of_naming() -> None:
    dotted = policy_with(settings={"nvidia-container-runtime.log-level": "debug"})
    assert dotted == policy_with(settings={"nvidia-container-runtime": {"log-level": "debug"}})
    (step,) = planned(converged(), dotted, FACTS).steps
    assert covers(step.change["after"], {("nvidia-container-runtime", "log-level"): "debug"})
    seen = converged(settings={**SAFE, ("nvidia-container-runtime", "log-level"): "debug"})
    assert planned(seen, dotted, FACTS).steps == ()


@pytest.mark.parametrize(("settings", "told"), [
    ({"nvidia-container-runtime.loglevel": "debug"}, "'nvidia-container-runtime.log-level'"),
    ({"nvidia-container-runtime": {"log-levle": "debug"}}, "'nvidia-container-runtime.log-level'"),
    ({"log-level": "debug"}, "'nvidia-container-runtime.log-level'"),
    ({"nvidia-container-runtime.mode": "cdi"}, "set `mode`"),
    ({"disable-require": "yes"}, "true or false"),
    ({"nvidia-container-runtime.modes.cdi.spec-dirs": "/etc/cdi"}, "a list of strings"),
    ({"nvidia-container-cli": "x"}, "use '"),
])
def test_a_setting_that_the_toolkit_does_not_know_is_refused(settings: Dict[str, Any], told: str) -> None:
    with pytest.raises(GpuOpsError) as caught:
        policy_with(settings=settings)
    assert told in str(caught.value)


def test_a_value_of_another_type_in_the_file_is_refused_and_an_unknown_key_is_named() -> None:
    with pytest.raises(GpuOpsError, match="nvidia-container-runtime.runtimes"):
        configuration.read_settings("f", "[nvidia-container-runtime]\nruntimes = 'runc'\n")
    with pytest.raises(GpuOpsError, match="a table"):
        configuration.read_settings("f", "nvidia-container-runtime = 'runc'\n")
    assert configuration.unknown_keys("f", "disable-require = true\n[features]\nspelt-wrong = true\n") == (
        "features.spelt-wrong",)
    (note,) = planned(converged(unknown=("features.spelt-wrong",)), policy_with(), FACTS).notes
    assert "ignores" in note


class WithRuntime(Host):
    """Its NVIDIA runtime takes no file with 'bad' in it, and finds no low-level runtime for others."""

    def which(self, program: str) -> Optional[str]:
        return "/usr/bin/" + program

    def run(self, argv: Any, *_words: Any, **options: Any) -> CommandResult:
        text = self.read(options["env"]["NVIDIA_CTK_CONFIG_FILE_PATH"]) or ""
        assert 'debug = "/dev/null"' in text
        return CommandResult(argv, 1, "", 'level=error msg="error loading config: (1, 1): no"' if "bad" in text
                             else 'level=error msg="no runtime binary found from candidate list"')


def test_what_the_real_runtime_says_of_the_new_file_stops_the_change(tmp_path: Path) -> None:
    host, bad = WithRuntime(str(tmp_path)), "# bad\n"
    to_change = {**SAFE, ("nvidia-container-runtime", "mode"): "auto"}

    def judged(seen: observation.Observation) -> "tuple[Refusal, ...]":
        return tuple(judge(host, seen, policy_with(), planned(seen, policy_with(), FACTS)))

    (refusal,) = judged(converged(configuration=bad, settings=to_change))
    assert "(1, 1): no" in refusal.found
    assert judged(converged(settings=to_change)) == ()
    assert judged(converged(configuration=bad)) == (), "a file that stays is somebody's own"
    assert judged(bare(configuration=bad, settings=to_change)) == (), "another version reads it"


def test_the_words_of_the_real_runtime_are_told(tmp_path: Path) -> None:
    host = WithRuntime(str(tmp_path))
    assert rewriting.objection(host, "# bad\n[nvidia-container-runtime]\ndebug = '/var/log/x'\n") == "(1, 1): no"
    assert rewriting.objection(host, "# good\n") == ""


def test_every_known_vulnerability_of_a_version_is_named() -> None:
    assert policy.vulnerabilities("1.17.3") == ("CVE-2026-24260", "CVE-2025-23267", "CVE-2025-23266", "CVE-2025-23359")
    assert policy.vulnerabilities("1.19.1") == ()


def test_an_ldconfig_of_the_container_is_refused() -> None:
    text = '[nvidia-container-cli]\nldconfig = "/sbin/ldconfig"\n'
    with pytest.raises(GpuOpsError, match="starts with '@'"):
        configuration.read_settings("f", text)
    configuration.read_settings("f", text + "[features]\nallow-ldconfig-from-container = true\n")
    configuration.read_settings("f", text.replace('"/', '"@/'))
