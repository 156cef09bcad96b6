# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List

import pytest
from driver_world import KEY, World, made, policy
from gpu_hosts import A100, B200, T4, V100, facts
from hypothesis import given
from hypothesis import strategies as st
from openpgp_keys import WITH_SUBKEY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import (
    SOURCES_FILE,
    pin_text,
    sources_text,
    unattended_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observation import (
    Observation,
    Offer,
    goes_down,
    key_needed,
    superfluous,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observing import list_name
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.origin import KEY_FILE, origin_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.record import Record
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.signing import ENROLLED, SigningKey
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages import space
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import keys
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Simulation

FINGERPRINT = "EA72E43618AB9E74CBA1A6347817BDBC403BAB96"
RUNNING, OLDER, NEWEST = "6.1.0-50-amd64", "6.1.0-42-amd64", "6.1.0-56-amd64"


def actions(plan: Plan) -> List[str]:
    return [step.action for step in plan.steps]


def refused(plan: Plan) -> str:
    assert plan.steps == ()
    assert plan.refusals
    assert all(refusal.found and refusal.wanted and refusal.remedy for refusal in plan.refusals)
    return " | ".join("%s; %s; %s" % (each.found, each.wanted, each.remedy) for each in plan.refusals)


class TestInstall:
    def test_a_module_that_could_not_be_built_again_is_not_given_away(self) -> None:
        there = facts(A100, driver_installed="580.178.04", driver_userspace="580.178.04", driver_loaded="580.178.04")
        world = World(kernels=(Kernel(RUNNING, headers=True),))
        world.apply(made(world, policy(kernel_module="proprietary"), there))
        world.kernels, world.headers_offered = (Kernel(RUNNING, module="580.178.04"),), False
        assert made(world, policy(kernel_module="proprietary"), there).steps == ()
        assert "no headers for kernel " + RUNNING in refused(made(world, policy(kernel_module="open"), there))


class TestExchange:
    @pytest.mark.parametrize("installed, wanted, down", [
        ("580.178.04-1", "580.178.04-1~deb12u1", True), ("1:580.178.04-1", "580.178.04-2", True),
        ("580.178.04-1~deb12u1", "580.178.04-1", False), ("580.178.04-9", "580.178.04-10", False),
    ])
    def test_a_downgrade_is_one_by_revision_and_epoch_too(self, installed: str, wanted: str, down: bool) -> None:
        assert goes_down({"nvidia-driver-cuda": installed}, {"nvidia-driver-cuda": wanted, "dkms": "3"}) is down


class TestBranches:
    @pytest.mark.parametrize("version, month, said", [
        ("580.178.04", "2028-09", "Driver branch 580 (long-term support) is mended no more since 2028-06"),
        ("580.178.04", "2026-11", ""), ("620.70.06", "2026-11", ""),
        ("640.20.01", "2026-11", "none of those that this collection knows"),
    ])
    def test_a_branch_without_future_is_noted_and_installed(self, version: str, month: str, said: str) -> None:
        world = World(versions=(version,), more={"month": month})
        plan = made(world, policy(version=version[:3]), facts(A100))
        assert not plan.refusals
        assert "packages.install" in actions(plan)
        assert any(said in note for note in plan.notes) if said else not plan.notes
        assert any(step.subject == "driver " + version for step in plan.steps), "the plan names the exact version"

    def test_the_date_is_no_part_of_what_was_planned_with(self) -> None:
        assert Observation(month="2026-11").to_dict() == Observation(month="2026-12").to_dict()


class TestConverged:
    @given(
        st.sampled_from(["580.126.09", "580.178.04", "580", "595", "610.57.04"]),
        st.sampled_from(["auto", "open"]),
        st.sampled_from([("debian", "12"), ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04")]),
        st.booleans(), st.booleans(), st.sampled_from(["", "fabric_manager", "fabric_manager_nvlsm"]),
        st.lists(st.sampled_from([OLDER, NEWEST]), unique=True),
    )
    def test_the_planner_is_content_with_its_own_result(
        self, version: str, module: str, system: tuple, hold: bool, full: bool, fabric: str, others: list
    ) -> None:
        kernels = sorted([RUNNING, *others])
        world = World(kernels=tuple(Kernel(release, release == OLDER) for release in kernels))
        there = facts(A100, os_id=system[0], os_version=system[1], fabric=fabric, boot_kernel=kernels[-1])
        wanted = policy(version=version, kernel_module=module, hold=hold, flavour="full" if full else "headless")
        plan = made(world, wanted, there)
        assert not plan.refusals
        world.apply(plan)
        assert world.observe(wanted, there).offer is None, "a converged host asks no repository"
        assert made(world, wanted, there) == Plan()

    @given(st.lists(st.sampled_from(["580.126.09", "580.178.04", "595.91.07", "610.57.04"]), min_size=1, max_size=5))
    def test_any_way_between_versions_ends_where_the_last_one_is(self, versions: List[str]) -> None:
        world, there = World(), facts(T4)
        for version in versions:
            world.apply(made(world, policy(version=version), there))
            there = there.but(driver_installed=version, driver_userspace=version, driver_loaded=version)
        driver = ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe",
                  "libnvidia-ml1")
        there_now = {name: version for name, version in world.installed.items() if "nvidia" in name}
        assert there_now == dict.fromkeys(driver, versions[-1] + "-1")
        assert made(world, policy(version=versions[-1]), there) == Plan()

    @given(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    def test_an_interrupted_run_ends_where_an_undisturbed_one_ends(self, stops: List[int]) -> None:
        world, there = World(kernels=(Kernel(OLDER, True), Kernel(RUNNING))), facts(A100)
        for stop in stops:
            plan = made(world, policy(), there)
            world.apply(replace(plan, steps=plan.steps[:stop]))
        world.apply(made(world, policy(), there))
        undisturbed = World(kernels=(Kernel(OLDER, True), Kernel(RUNNING)))
        undisturbed.apply(made(undisturbed, policy(), there))
        assert world == undisturbed


class TestAbsent:
    def test_the_kernel_that_runs_stays(self) -> None:
        world = World(installed_by_us={"linux-image-" + RUNNING: "1", "dkms": "3"}, installed={"dkms": "3"})
        plan = made(world, policy(state="absent"), facts(A100))
        (step,) = plan.steps
        assert step.change["after"] == {"dkms": None}
        assert any(RUNNING in kept.subject for kept in plan.kept)


class TestRefusals:
    def test_an_unknown_version_lists_those_there_are(self) -> None:
        text = refused(made(World(), policy(version="580.1.1"), facts(A100)))
        assert "580.126.09, 580.178.04, 595.91.07, 610.57.04" in text
        assert "driver 580.1.1" in text

    @pytest.mark.parametrize("device, changes, said", [
        (V100, {"kernel_module": "open"}, "proprietary module only"),
        (V100, {"version": "595"}, "branch 580 or older"),
        (B200, {"kernel_module": "proprietary"}, "open module only"),
        (A100, {"kernel_module": "proprietary", "version": "615"}, "open kernel module only"),
        (B200, {"source": "distribution", "version": "550"}, "branch 570 or newer"),
    ])
    def test_what_the_silicon_does_not_take(self, device: str, changes: Dict[str, Any], said: str) -> None:
        assert said in refused(made(World(), policy(**changes), facts(device)))

    @pytest.mark.parametrize("there, said", [
        (facts(), "no NVIDIA GPU"),
        (facts(A100, immutable="/run/ostree-booted"), "/run/ostree-booted"),
        (facts(A100, os_id="arch", os_version=""), "Debian, Ubuntu"),
        (facts(A100, secure_boot=True), "mokutil --import"),
    ])
    def test_what_the_host_does_not_take(self, there: Any, said: str) -> None:
        assert said in refused(made(World(), policy(), there))

    def test_secure_boot_with_an_enrolled_key_or_by_will(self) -> None:
        enrolled = World(signing_key=SigningKey(state=ENROLLED))
        assert not made(enrolled, policy(), facts(A100, secure_boot=True)).refusals
        assert not made(World(), policy(secure_boot="ignore"), facts(A100, secure_boot=True)).refusals

    @pytest.mark.parametrize("more, said", [
        ({"leftovers": ("/usr/bin/nvidia-uninstall",)}, "run `nvidia-uninstall`"),
        ({"foreign_sources": ("/etc/apt/sources.list.d/cuda-debian12-x86_64.list",)}, "cuda-keyring"),
        ({"broken": ("linux-image-6.1.0-56-amd64",)}, "dpkg --configure -a"),
    ])
    def test_what_somebody_left_behind(self, more: Dict[str, Any], said: str) -> None:
        assert said in refused(made(World(more=more), policy(), facts(A100)))

    @pytest.mark.parametrize("installed, source", [
        ({"nvidia-smi": "535.261.03-1~deb12u1"}, "nvidia_repository"),
        ({"nvidia-driver-cuda": "580.178.04-1"}, "distribution"),
    ])
    def test_packages_of_another_source(self, installed: Dict[str, str], source: str) -> None:
        text = refused(made(World(installed=installed), policy(source=source), facts(A100)))
        assert "apt-get purge" in text

    def test_an_unreachable_repository_is_named(self) -> None:
        seen = replace(World().observe(policy(), facts(A100)), offer=Offer(error="http://mirror/ cannot be read: 111"))
        text = refused(planner.plan(seen, policy(), facts(A100)))
        assert "http://mirror/debian12/x86_64/" in text and "cannot be read" in text

    def test_another_key_than_the_one_expected(self) -> None:
        text = refused(made(World(), policy(repository_key_fingerprint="EB69 3B30"), facts(A100)))
        assert "the key EB693B30" in text

    def test_a_second_key_beside_the_expected_one(self) -> None:
        both = policy(repository_key=KEY + WITH_SUBKEY, repository_key_fingerprint=FINGERPRINT)
        assert "2 keys in one file" in refused(made(World(), both, facts(A100)))

    def test_a_key_that_somebody_added_to_is_fetched_again(self) -> None:
        there = facts(A100)
        fetched = policy(repository_key="http://mirror/key.asc", repository_key_fingerprint=FINGERPRINT)
        origin = origin_of(fetched, there)
        files = {SOURCES_FILE: sources_text(origin), KEY_FILE: KEY}
        assert not key_needed(Observation(files=files), origin)
        files[KEY_FILE] = keys.read((KEY + WITH_SUBKEY).encode()).armoured
        assert key_needed(Observation(files=files), origin)

    def test_a_key_on_the_host_is_copied_and_followed(self) -> None:
        there, given_path = facts(A100), policy(repository_key="/root/key.gpg")
        origin = origin_of(given_path, there)
        assert "Signed-By: %s\n" % KEY_FILE in sources_text(origin) and "# Key: /root/key.gpg\n" in sources_text(origin)
        files = {SOURCES_FILE: sources_text(origin), KEY_FILE: KEY}
        assert not key_needed(Observation(files=files, given_key=KEY), origin)
        assert key_needed(Observation(files=files, given_key=WITH_SUBKEY), origin)

    def test_a_system_without_directory_or_key(self) -> None:
        nowhere = policy(repository_url="", repository_key="")
        assert "set `repository_url`" in refused(made(World(), nowhere, facts(A100, os_version="11")))
        resolute = facts(A100, os_id="ubuntu", os_version="26.04")
        assert "set `repository_key`" in refused(made(World(), nowhere, resolute))

    @pytest.mark.parametrize("simulation, said", [
        (Simulation({}, (), "dkms : Depends: gcc but it is not installable"), "gcc"),
        (Simulation({"libnvidia-ml1": "595.91.07-1"}, ()), "libnvidia-ml1 595.91.07-1"),
        (Simulation({}, ("kubelet",)), "apt would remove kubelet"),
    ])
    def test_a_transaction_that_would_go_wrong(self, simulation: Simulation, said: str) -> None:
        seen = World().observe(policy(), facts(A100))
        seen = replace(seen, offer=replace(seen.offer, transaction=simulation))
        assert said in refused(planner.plan(seen, policy(), facts(A100)))

    def test_a_held_driver_is_there_and_its_hold_is_named(self) -> None:
        world, there = World(), facts(A100)
        world.apply(made(world, policy(version="580.126.09"), there))
        world.more = {"held": {"nvidia-driver-cuda": "580.126.09-1"}}
        assert made(world, policy(version="580.126.09"), there) == Plan(), "the held version is the wanted one"
        seen = world.observe(policy(), there)
        refusing = replace(seen.offer.transaction, problem="Held packages were changed", held=("nvidia-driver-cuda",))
        text = refused(planner.plan(replace(seen, offer=replace(seen.offer, transaction=refusing)), policy(), there))
        assert "nvidia-driver-cuda 580.126.09-1" in text and "apt-mark unhold nvidia-driver-cuda" in text

    def test_a_hold_that_makes_the_rest_unsolvable_is_named_too(self) -> None:
        seen = replace(World().observe(policy(), facts(A100)), held={"libnvidia-ml1": "580.126.09-1"})
        broken = replace(seen.offer.transaction, problem="libnvidia-ml1 (= 580.178.04-1) is not to be installed")
        seen = replace(seen, offer=replace(seen.offer, transaction=broken))
        text = refused(planner.plan(seen, policy(), facts(A100)))
        assert "apt-mark unhold libnvidia-ml1" in text

    def test_held_packages_of_ours_are_not_removed(self) -> None:
        world = World(installed={"dkms": "3"}, installed_by_us={"dkms": "3"}, more={"held": {"dkms": "3"}})
        assert "apt-mark unhold dkms" in refused(made(world, policy(state="absent"), facts(A100)))

    @pytest.mark.parametrize("state", ["present", "absent"])
    def test_a_host_without_python3_apt(self, state: str) -> None:
        world = World(installed={"dkms": "3"}, installed_by_us={"dkms": "3"}, more={"bindings": False})
        assert "apt-get install python3-apt" in refused(made(world, policy(state=state), facts(A100)))

    def test_a_file_system_without_room(self) -> None:
        seen = World().observe(policy(), facts(A100))
        directories = {space.SYSTEM: 1, space.ARCHIVES: 2, space.BOOT: 3}
        room = space.Space(directories, dict.fromkeys(directories, 40 * space.MIB), 50 * space.MIB)
        text = refused(planner.plan(replace(seen, offer=replace(seen.offer, space=room)), policy(), facts(A100)))
        assert "40 MiB free for /boot" in text and "50 MiB for this transaction" in text
        full = replace(seen, offer=replace(seen.offer, space=room))
        assert full.to_dict() == seen.to_dict(), "the digest of an observation lasts longer than the room on a disk"

    def test_a_source_of_somebody_else_that_cannot_be_read_is_noted(self) -> None:
        seen = World().observe(policy(), facts(A100))
        offer = replace(seen.offer, unread=("http://third.party/ is expired",))
        plan = planner.plan(replace(seen, offer=offer), policy(), facts(A100))
        assert plan.steps and any("http://third.party/ is expired" in note for note in plan.notes)

    def test_a_driver_that_is_incomplete_in_the_repository(self) -> None:
        seen = World().observe(policy(), facts(A100, fabric="fabric_manager"))
        versions = dict(seen.offer.versions, **{"nvidia-fabricmanager": ["595.91.07-1"]})
        seen = replace(seen, offer=replace(seen.offer, versions=versions))
        text = refused(planner.plan(seen, policy(), facts(A100, fabric="fabric_manager")))
        assert "nvidia-fabricmanager: 595.91.07-1" in text

    def test_the_running_kernel_cannot_get_a_module(self) -> None:
        text = refused(made(World(headers_offered=False), policy(), facts(A100)))
        assert "no headers for kernel " + RUNNING in text


class TestFiles:
    """Their bytes tell whether a host is converged: other ones are a change of every host."""

    SAYS = "Managed by the Ansible collection gpuops.nvidia: changes made here are lost."

    @pytest.mark.parametrize("key, noted", [
        (KEY, ""), ("http://mirror/key.asc", "# Key: http://mirror/key.asc\n"),
        ("/root/key.gpg", "# Key: /root/key.gpg\n"),
    ])
    def test_the_repository(self, key: str, noted: str) -> None:
        assert sources_text(origin_of(policy(repository_key=key), facts(A100))) == (
            "# %s\n%sTypes: deb\nURIs: http://mirror/debian12/x86_64/\nSuites: /\n"
            "Signed-By: /etc/apt/keyrings/gpuops-nvidia-driver.asc\n" % (self.SAYS, noted))

    def test_the_pin(self) -> None:
        first, packages, *rest = pin_text("580.178.04-*").splitlines(keepends=True)
        assert first == "# %s\n" % self.SAYS
        assert packages.startswith("Package: nvidia-* libnvidia-* libcuda1 ")
        assert "".join(rest) == "Pin: version 580.178.04-*\nPin-Priority: 1000\n"

    def test_what_unattended_upgrades_leave_alone(self) -> None:
        assert unattended_text().startswith(
            '// %s\nUnattended-Upgrade::Package-Blacklist {\n    "nvidia-(?!container)";\n' % self.SAYS)
        assert unattended_text().endswith('    "lib(gl|glx|egl|gles)[0-9]?-nvidia";\n};\n')


RUNFILE = {"source": "runfile", "runfile_checksum": "0" * 64}


class TestPolicy:
    @pytest.mark.parametrize("changes, said", [
        ({"source": "runfile", "version": "580"}, "the exact version of the file"),
        ({"source": "runfile"}, "64 hexadecimal digits"),
        ({"source": "runfile", "runfile_checksum": "md5:" + "0" * 32}, "64 hexadecimal digits"),
        ({**RUNFILE, "runfile": "driver.run"}, "an absolute path on the host"),
        ({**RUNFILE, "runfile": "ftp://mirror/"}, "http, https or file"),
        ({**RUNFILE, "build": "precompiled"}, "leave `build` out"),
        ({**RUNFILE, "gds": True}, "leave `gds` out"),
        ({**RUNFILE, "fabric_manager": "present"}, "the driver alone"),
        ({**RUNFILE, "extra_packages": ["nvidia-settings"]}, "the driver alone"),
        ({"version": "latest"}, "580.178.04"),
        ({"version": ">=580.95.05,<590"}, "set `source` to `preinstalled`"),
        ({"version": ">=590,<580", "source": "preinstalled"}, "a range that a version can be in"),
        ({"version": ">=580 <590", "source": "preinstalled"}, ">=580.95.05,<590"),
        ({"version": ""}, "several branches"),
        ({"version": "580.178.04-1"}, "package revisions"),
        ({"source": "local_repository", "repository_url": ""}, "repository_url"),
        ({"source": "local_repository", "repository_key": ""}, "repository_key"),
        ({"repository_key": "ftp://mirror/key"}, "http(s) URL"),
        ({"extra_packages": ["nvidia-imex=580.178.04-1"]}, "without versions"),
    ])
    def test_contradictions_are_refused(self, changes: Dict[str, Any], said: str) -> None:
        with pytest.raises(GpuOpsError) as caught:
            policy(**changes)
        assert said in str(caught.value)

    def test_an_url_ends_in_one_slash(self) -> None:
        assert policy(repository_url="http://mirror/x//").repository_url == "http://mirror/x/"


@pytest.mark.parametrize("url, name", [
    ("http://packages.gpulab:8480/cuda/repos/debian12/x86_64/", "packages.gpulab:8480_cuda_repos_debian12_x86%5f64_"),
    ("file:///var/nvidia-repo/", "_var_nvidia-repo_"),
    # as 'apt-get update --print-uris' of apt 2.6 tells them
    ("file:/srv/repo/", "_srv_repo_"),
    ("http://mirror:8080/~gpu/repo/", "mirror:8080_%7egpu_repo_"),
    ("http://mirror/a=b_c/", "mirror_a%3db%5fc_"),
    ("http://[::1]:80/x%20y!z/", "::1:80_x%20y%21z_"),
    ("http://mirror/pool,x+y&z@w/", "mirror_pool,x+y%26z%40w_"),
])
def test_how_apt_names_the_index_of_a_repository(url: str, name: str) -> None:
    assert list_name(url) == name


def test_what_builds_modules_stays_when_the_driver_before_comes_back() -> None:
    brought = {"dkms": "3.2.2-1.el9", "gcc": "11.5.0-5.el9", "make": "1:4.3-8.el9", "nvidia-imex": "595.91.07-1"}
    before = Record("580.178.04", "open", "", {"nvidia-driver-cuda": "3:580.178.04-1.el9"})
    assert set(superfluous(Observation(installed_by_us=brought), before)) == {"nvidia-imex"}


@pytest.mark.parametrize(("there", "brings"), [("libnvidia-ml1", True), ("nvidia-persistenced", False)])
def test_what_comes_to_a_host_with_a_part_of_a_driver_is_foretold(there: str, brings: bool) -> None:
    """Libraries alone, which somebody has installed, are no reason to expect no unit."""
    world = World()
    world.say_package(there, "580.126.09-1")
    now = facts(A100, driver_userspace="580.126.09")
    seen = world.observe(policy(), now)
    planned = planner.plan(seen, policy(), now)
    assert not planned.refusals
    after = planner.facts_after(seen, policy(), now, planned)
    assert (after.driver_installed, after.driver_brings_unit) == ("580.178.04", brings)
