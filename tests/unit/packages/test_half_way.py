# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver of which a stopped transaction, or an older policy, has brought a part: the rest is added in its version."""
from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import generic_executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.executors import EXECUTORS
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observing import observe
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import ARGUMENTS, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import provenance
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import database
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import install_words

KERNEL = "6.1.0-50-amd64"
FACTS = HostFacts(hostname="gpu1", os_id="debian", os_version="12", arch="x86_64", kernel=KERNEL, boot_kernel=KERNEL,
                  gpus=(Gpu("0000:01:00.0", "2901"),), fabric="fabric_manager_nvlsm")
WANTED, NEWEST = "580.178.04-1", "610.57.04-1"
WHOLE = {**dict.fromkeys((
    "nvidia-driver-cuda", "libcuda1", "libnvidia-ptxjitcompiler1", "nvidia-kernel-open-dkms", "nvidia-persistenced",
    "nvidia-modprobe", "nvidia-fabricmanager"), WANTED), "nvlsm": NEWEST}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Repository]:
    """Two drivers, libraries that need each other exactly, and a subnet manager with versions of its own."""
    with Repository(tmp_path / "driver") as running:
        for version in (WANTED, NEWEST):
            for name, depends in (
                ("nvidia-kernel-open-dkms", ""), ("nvidia-persistenced", ""), ("nvidia-modprobe", ""),
                ("nvidia-driver-cuda", "libcuda1 (= %s)" % version), ("nvidia-fabricmanager", ""),
                ("libcuda1", "libnvidia-ptxjitcompiler1 (= %s)" % version), ("libnvidia-ptxjitcompiler1", ""),
            ):
                build(running.directory, name, version, depends=depends,
                      conflicts="nvidia-kernel-dkms" if "open" in name else "")
            build(running.directory, "nvidia-kernel-dkms", version, conflicts="nvidia-kernel-open-dkms")
        build(running.directory, "nvlsm", NEWEST)
        build(running.directory, "tool-of-ours", WANTED)
        (running.directory / "key.asc").write_text(running.key.public)
        running.publish()
        yield running


def planned(root: Root, driver: Repository, facts: HostFacts = FACTS, **changes: Any) -> Plan:
    given: Dict[str, Any] = {name: option.get("default") for name, option in ARGUMENTS.items()}
    given.update(version="580.178.04", kernel_headers=False, hold=False, repository_url=driver.url,
                 repository_key=driver.url + "key.asc", repository_key_fingerprint=driver.key.fingerprint)
    given.update(changes)
    (root.path / "lib/modules" / KERNEL / "build").mkdir(parents=True, exist_ok=True)
    (root.path / "lib/modules" / KERNEL / "build/Makefile").touch()
    (root.path / "lib/modules" / KERNEL / "kernel").mkdir(exist_ok=True)
    wanted = policy_of(given)
    plan = planner.plan(observe(root.host, Journal(root.host), wanted, facts), wanted, facts)
    assert not plan.refusals
    return plan


def installed_by_us(root: Root, driver: Repository, packages: Dict[str, str]) -> None:
    """Packages of the repository are there, and no entry but ours may name it."""
    root.trust(driver)
    root.apt("update")
    root.install(*("%s=%s" % item for item in packages.items()))
    (root.path / "etc/apt/sources.list.d/other.list").unlink()


def packages_of(plan: Plan) -> Dict[str, Any]:
    return {name: version for step in plan.steps if step.action == "packages.install"
            for name, version in step.change["after"].items()}


def test_what_is_whole_is_left_alone(root: Root, driver: Repository) -> None:
    wanted = packages_of(planned(root, driver, extra_packages=["tool-of-ours"]))
    assert wanted["nvlsm"] == NEWEST and wanted["libcuda1"] == wanted["tool-of-ours"] == WANTED
    installed_by_us(root, driver, wanted)
    assert packages_of(planned(root, driver, extra_packages=["tool-of-ours"])) == {}


def test_a_part_that_is_missing_comes_without_moving_the_rest(root: Root, driver: Repository) -> None:
    installed_by_us(root, driver, dict.fromkeys((
        "nvidia-driver-cuda", "libcuda1", "libnvidia-ptxjitcompiler1", "nvidia-kernel-open-dkms",
        "nvidia-persistenced", "nvidia-modprobe"), WANTED))
    followers = ("libcuda1", "libnvidia-ptxjitcompiler1")
    root.host.run(["apt-mark", *database.own(root.host), "auto", *followers])
    assert packages_of(planned(root, driver)) == {"nvidia-fabricmanager": WANTED, "nvlsm": NEWEST}


def test_the_kernel_that_runs_keeps_what_it_needs(root: Root, repository: Repository) -> None:
    """Ubuntu's have their modules in a package of their own: apt takes the kernel with it."""
    image, modules = "linux-image-" + KERNEL, "linux-modules-" + KERNEL
    build(repository.directory, modules, "6.1-1")
    build(repository.directory, image, "6.1-1", depends=modules)
    repository.add("dkms", "3")
    root.trust(repository)
    root.apt("update")
    root.install(image, "dkms")
    journal = Journal(root.host)
    journal.set_packages("driver", {name: PackageChange(None, version) for name, version in root.installed().items()})
    wanted = policy_of({**{name: option.get("default") for name, option in ARGUMENTS.items()}, "state": "absent"})
    plan = planner.plan(observe(root.host, journal, wanted, FACTS), wanted, FACTS)
    assert [step.change["after"] for step in plan.steps if step.action == "packages.remove"] == [{"dkms": None}]
    assert len(plan.kept) == 2


def test_what_nothing_of_the_driver_needs_moves_with_it(root: Root, driver: Repository) -> None:
    """IMEX of another version than the driver does not start. What the repository has not stays."""
    for name, version in (("nvidia-imex", WANTED), ("nvidia-imex", NEWEST), ("nvidia-settings", NEWEST)):
        build(driver.directory, name, version)
    driver.publish()
    installed_by_us(root, driver, {**dict.fromkeys(WHOLE, NEWEST), "nvidia-imex": NEWEST, "nvidia-settings": NEWEST})
    root.host.run(["apt-mark", *database.own(root.host), "auto", "nvidia-imex"])
    step = next(step for step in planned(root, driver).steps if step.action == "packages.install")
    assert step.change["after"]["nvidia-imex"] == WANTED and "nvidia-settings" not in step.change["after"]
    assert "nvidia-imex" in step.parameters["automatic"]


def test_firmware_of_a_driver_before_is_no_part_of_this_one(root: Root, driver: Repository) -> None:
    """Ubuntu names it by version: it stays until somebody removes it, and needs no index again and again."""
    build(driver.directory, "nvidia-firmware-580-580.126.09", "580.126.09-1")
    driver.publish()
    installed_by_us(root, driver, {**WHOLE, "nvidia-firmware-580-580.126.09": "580.126.09-1"})
    key, sources = [step for step in planned(root, driver).steps if step.action == "file.write"]
    for step in (key, sources):
        root.host.write(step.subject, step.change["after"])
    driver.requests.clear()
    assert [step.action for step in planned(root, driver).steps] == ["dkms.build"]
    assert driver.requests == []


@pytest.mark.parametrize("state", ["present", "staged"])
def test_a_converged_host_refreshes_no_metadata(
    root: Root, driver: Repository, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the package manager nor we ask a repository for anything, and no list is written."""
    installed_by_us(root, driver, WHOLE)
    for step in planned(root, driver).steps:
        if step.action == "file.write":
            root.host.write(step.subject, step.change["after"])
    lists = root.path / "var/lib/apt/lists"
    before = {path.name: path.stat().st_mtime_ns for path in lists.iterdir()}
    commands: List[Sequence[str]] = []
    run = Host.run

    def noted(self: Host, argv: Sequence[str], *words: Any, **named: Any) -> CommandResult:
        commands.append(argv)
        return run(self, argv, *words, **named)

    monkeypatch.setattr(Host, "run", noted)
    driver.requests.clear()
    assert "packages" not in {step.action.split(".")[0] for step in planned(root, driver, state=state).steps}
    assert commands and not [argv for argv in commands if argv[0] == "apt-get" or "update" in argv]
    assert driver.requests == []
    assert before == {path.name: path.stat().st_mtime_ns for path in lists.iterdir()}


@pytest.mark.variation
def test_what_was_staged_is_planned_and_fetched_without_the_repository(root: Root, driver: Repository) -> None:
    """Also after somebody's `apt-get clean`; what was not staged is not to be had without it."""
    installed_by_us(root, driver, WHOLE)
    journal = Journal(root.host)
    change = {"version": "610.57.04", "hold": False}
    online = planned(root, driver, **change)
    for step in online.steps:
        if step.action in ("file.write", "packages.download"):
            executed = {**generic_executors(), **EXECUTORS}[step.action]
            executed(root.host, journal, step)
    root.apt("clean")
    driver.close()
    offline = planned(root, driver, **change)
    (install,) = [step for step in offline.steps if step.action == "packages.install"]
    assert install.promise() in [step.promise() for step in online.steps]
    for step in offline.steps:
        if step.action == "packages.download":
            EXECUTORS[step.action](root.host, journal, step)
    fetched = root.host.run(["apt-get", *database.own(root.host), "--print-uris", *install_words(
        install.parameters["request"], install.parameters["allow_downgrade"])]).stdout
    assert "http://" not in fetched
    with pytest.raises(AssertionError):
        planned(root, driver, version="595.91.07")


@pytest.mark.parametrize("directory", ["var/cache/apt/archives", "srv/archives"])
def test_what_is_staged_need_not_be_fetched_where_it_is_installed(
    root: Root, driver: Repository, directory: str
) -> None:
    """Wherever apt keeps what it fetches: what was staged would otherwise be staged for ever."""
    root.write("etc/apt/apt.conf.d/50places", 'Dir::Cache::archives "%s/%s/";\n' % (root.path, directory))
    (root.path / directory / "partial").mkdir(parents=True, exist_ok=True)
    installed_by_us(root, driver, {name: version for name, version in WHOLE.items() if name != "nvidia-fabricmanager"})
    for path in (root.path / directory).glob("*.deb"):
        path.unlink()
    assert "packages.download" in [step.action for step in planned(root, driver, state="staged").steps]
    (root.path / directory / ("nvidia-fabricmanager_%s_all.deb" % WANTED)).write_bytes(b"!<arch>\n")
    assert "packages.download" not in [step.action for step in planned(root, driver, state="staged").steps]


@pytest.mark.parametrize("first, second", [("open", "proprietary"), ("proprietary", "open")])
def test_the_other_kernel_module_of_the_version_takes_the_place_of_the_first(
    root: Root, driver: Repository, first: str, second: str
) -> None:
    ampere = FACTS.but(gpus=(Gpu("0000:01:00.0", "20b2"),), fabric="")
    names = {"open": "nvidia-kernel-open-dkms", "proprietary": "nvidia-kernel-dkms"}
    installed_by_us(root, driver, packages_of(planned(root, driver, ampere, kernel_module=first)))
    assert packages_of(planned(root, driver, ampere, kernel_module=second)) == {
        names[first]: None, names[second]: WANTED}


@pytest.fixture
def needed(root: Root, repository: Repository) -> Repository:
    """A driver of ours with what it needs, of which a package of the administrator's needs something too."""
    for name, version, depends in (
        *(("nvidia-driver-cuda", version, "libcuda1 (= %s), dkms" % version) for version in (WANTED, NEWEST)),
        ("libcuda1", WANTED, ""), ("libcuda1", NEWEST, ""), ("dkms", "3", ""), ("builder", "1", "dkms"),
    ):
        build(repository.directory, name, version, depends=depends)
    repository.publish()
    root.trust(repository)
    root.apt("update")
    root.install("nvidia-driver-cuda=%s" % WANTED, "libcuda1=%s" % WANTED)
    root.install("builder")
    journal = Journal(root.host)
    journal.set_packages("driver", {"nvidia-driver-cuda": PackageChange(None, WANTED),
                                    "libcuda1": PackageChange(None, WANTED), "dkms": PackageChange(None, "3")})
    journal.remember(provenance.MEMORY, {"driver": ["nvidia-driver-cuda", "libcuda1"]})
    return repository


@pytest.mark.parametrize("left", ["marks of zeros", "unmet dependencies", "a torn package"])
def test_what_a_package_of_others_needs_stays_whatever_state_a_stopped_transaction_has_left(
    root: Root, needed: Repository, left: str
) -> None:
    """apt simulates no removal then, and would take the other package along once all is whole again."""
    if left == "marks of zeros":
        (root.path / "var/lib/apt/extended_states").write_bytes(b"\0" * 4096)
        Journal(root.host).remember(provenance.UNMARKED, {"driver": ["dkms"]})
    else:
        subprocess.run(["dpkg", "--root=%s" % root.path, "--force-not-root", "--force-depends", "--unpack",
                        str(needed.directory / ("nvidia-driver-cuda_%s_all.deb" % NEWEST))], check=True,
                       capture_output=True)
    if left == "a torn package":
        status = root.path / "var/lib/dpkg/status"
        stanzas = status.read_text().split("\n\n")
        status.write_text("\n\n".join(
            each.replace("install ok installed", "install reinstreq half-installed") if "Package: libcuda1" in each
            else each for each in stanzas))
    policy = policy_of({**{name: option.get("default") for name, option in ARGUMENTS.items()}, "state": "absent"})
    plan = planner.plan(observe(root.host, Journal(root.host), policy, FACTS), policy, FACTS)
    goes = [sorted(step.change["after"]) for step in plan.steps if step.action == "packages.remove"]
    assert goes == [["libcuda1", "nvidia-driver-cuda"]]
