# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is built ahead on a scratch root. The real DKMS is that of laboratory hosts (tests/integration/test_driver.py);
here its build leaves what it leaves there; dpkg-deb, sha256sum, and bash, in which DKMS reads overrides, are real."""
from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import pytest
from driver_world import World, policy
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.approval import differences
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import (
    archive,
    kernels,
    staging_executors,
    undisturbed,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.staged_build import (
    STAGED,
    StagedBuild,
    directory,
    override_path,
    read_staged,
)

OLD, NEW = "580.178.04", "595.91.07"
KERNEL, OTHER = "6.1.0-50-amd64", "6.1.0-42-amd64"
PACKAGES = {"nvidia-kernel-open-dkms": NEW + "-1"}
MODULES = ("nvidia", "nvidia-uvm")
CONF = """\
PACKAGE_NAME="nvidia"
PACKAGE_VERSION="%s"
MAKE[0]="make -C ${dkms_tree}/nvidia/%s/build KERNEL_UNAME=${kernelver} modules"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/updates/dkms"
BUILT_MODULE_NAME[1]="nvidia-uvm"
DEST_MODULE_LOCATION[1]="/updates/dkms"
""" % (NEW, NEW)
LOG = "DKMS make.log for nvidia-%s for kernel %s (x86_64)\nnvidia.c:3:2: error: #error no such kernel\nmake: 2\n" % (
    NEW, KERNEL)


class Killed(BaseException):
    """The process dies."""


class Machine(Host):
    """builds: what DKMS ends with, log: and what its log is then. installed: {kernel: version of its module}.
    dies_at: the command not reached. root_is_full: no package can be unpacked.
    hangs: whether DKMS does not end. built: how often DKMS was called, and meanwhile: what others do while it works."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.builds, self.log = 0, LOG
        self.installed: Dict[str, str] = {}
        self.commands: List[Sequence[str]] = []
        self.dies_at = 0
        self.root_is_full = False
        self.hangs = False
        self.built = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def run(
        self, argv: Sequence[str], check: bool = True, timeout: float = 120, stdin: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> CommandResult:
        self.commands.append(argv)
        if len(self.commands) == self.dies_at:
            raise Killed
        if argv[0] == "modinfo":
            return CommandResult(argv, 0, "version: %s\n" % next(
                version for release, version in self.installed.items() if release in argv[-1]), "")
        if "--extract" in argv and self.root_is_full:
            argv = ["sh", "-c", "echo 'dpkg-deb: error: No space left on device' >&2; exit 2"]
        if "dkms" not in argv:
            return super().run(argv, check, timeout, stdin, env)
        assert argv[:4] == ["nice", "-n", "19", "dkms"] and (env or {})["sign_file"] == "/nonexistent"
        tree, version, kernel = (argv[argv.index(each) + 1] for each in ("--dkmstree", "-v", "-k"))
        source = Path(argv[argv.index("--sourcetree") + 1]) / ("nvidia-" + version)
        assert (source / "dkms.conf").is_file()
        made = Path(tree) / "nvidia" / version
        if (made / kernel).exists():
            return CommandResult(argv, 0, "Module nvidia/%s already built for kernel %s.\n" % (version, kernel), "")
        self.built += 1
        self.meanwhile()
        if self.hangs:
            return super().run(["sleep", "60"], check, 0.2)
        if self.builds:
            (made / "build").mkdir(parents=True)
            (made / "build/make.log").write_text(self.log)
            return CommandResult(argv, self.builds, "", "Error! Bad return status")
        (made / kernel / "x86_64/module").mkdir(parents=True)
        for name in MODULES:
            (made / kernel / "x86_64/module" / (name + ".ko")).write_text("%s of %s\n" % (name, kernel))
        return CommandResult(argv, 0, "", "")


def put(root: Path, name: str, text: str) -> Path:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """The package of the new driver has been fetched; DKMS and the headers of a kernel are there."""
    root = tmp_path / "root"
    for name in ("Makefile", "Module.symvers", ".config", "include/generated/autoconf.h"):
        put(root, "/lib/modules/%s/build/%s" % (KERNEL, name), name + "\n")
    put(root, "/etc/dkms/framework.conf", "")
    package(tmp_path, root, {"usr/src/nvidia-%s/dkms.conf" % NEW: CONF, "usr/src/nvidia-%s/nvidia.c" % NEW: "int x;\n"})
    return Machine(root)


def package(directory: Path, root: Path, files: Mapping[str, str]) -> None:
    unpacked = directory / "deb"
    shutil.rmtree(unpacked, ignore_errors=True)
    put(unpacked, "DEBIAN/control", "Package: nvidia-kernel-open-dkms\nVersion: %s-1\nArchitecture: all\n"
        "Maintainer: A <a@b>\nDescription: x\n" % NEW)
    for name, text in files.items():
        put(unpacked, name, text)
    store = root / archive.STORE.lstrip("/")
    store.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-deb", "--build", str(unpacked), str(store / ("nvidia-kernel-open-dkms_%s-1_all.deb" % NEW))],
                   check=True, stdout=subprocess.DEVNULL)


def step(kernel: str = KERNEL, essential: bool = True) -> Step:
    return Step("driver", "module.stage", kernel, "", change={"before": {"nvidia": None}, "after": {"nvidia": NEW}},
                parameters={"packages": PACKAGES, "essential": essential, "timeout": 60})


def stage(machine: Machine, **how: Any) -> List[StagedBuild]:
    staging_executors.stage_module(machine, Journal(machine), step(**how))
    return list(read_staged(machine))


def left(machine: Machine) -> List[str]:
    return [*machine.glob("/var/cache/gpuops/staged"), *machine.glob("/etc/dkms/nvidia*")]


class TestStaging:
    def test_what_is_built_ahead_is_whole_and_of_these_packages(self, machine: Machine) -> None:
        assert stage(machine) == [StagedBuild(KERNEL, NEW, PACKAGES, True)]
        assert machine.list(directory(KERNEL)) == [
            "inputs.sha256", "modules", "modules.sha256", "source.sha256", "stage.json", "take"]
        assert not machine.exists("/var/lib/dkms"), "DKMS's own tree is as it was"
        assert "usr/src/nvidia-%s/nvidia.c" % NEW in (machine.read(directory(KERNEL) + "/source.sha256") or "")
        assert read_staged(machine)[0].is_for(NEW, {**PACKAGES, "nvidia-driver-cuda": NEW + "-1"})
        assert not read_staged(machine)[0].is_for(NEW, {"nvidia-kernel-dkms": NEW + "-1"})

    def test_killed_at_any_command_it_is_not_taken_for_whole_and_is_built_anew(self, machine: Machine) -> None:
        stage(machine)
        total = max(number for number, words in enumerate(machine.commands, 1) if "--force" in words)
        undisturbed = {path: machine.read(path) for path in machine.glob(STAGED + "/**/*") if machine.is_file(path)}
        for number in range(1, total + 1):
            staging_executors.discard(machine, KERNEL)
            machine.commands, machine.dies_at = [], number
            with pytest.raises(Killed):
                stage(machine)
            assert not any(build.whole for build in read_staged(machine))
            assert [build.whole for build in stage(machine)] == [True]
            assert undisturbed == {
                path: machine.read(path) for path in machine.glob(STAGED + "/**/*") if machine.is_file(path)}

    @pytest.mark.parametrize("path, text", [
        (directory(KERNEL) + "/modules/nvidia.ko", ""),
        (directory(KERNEL) + "/modules.sha256", ""),
        (directory(KERNEL) + "/inputs.sha256", None),
        (directory(KERNEL) + "/take", ""),
        (directory(KERNEL) + "/stage.json", '{"schema": 1'),
        (override_path("nvidia", NEW, KERNEL), None),
        ("/lib/modules/%s/build/Module.symvers" % KERNEL, "another\n"),
        ("/lib/modules/%s/build/.config" % KERNEL, "another\n"),
    ])
    def test_what_is_torn_or_built_for_other_headers_is_not_whole(
        self, machine: Machine, path: str, text: Optional[str]
    ) -> None:
        stage(machine)
        if text is None:
            machine.remove(path)
        else:
            machine.write(path, text)
        assert [build.whole for build in read_staged(machine)] == [False]
        assert [build.whole for build in stage(machine)] == [True]

    def test_packages_without_a_source_are_said_to_have_none(self, machine: Machine, tmp_path: Path) -> None:
        package(tmp_path, tmp_path / "root", {"usr/share/doc/nvidia/README": "x\n"})
        (build,) = stage(machine)
        assert build.is_for(NEW, PACKAGES) and "have no /usr/src/nvidia*-%s" % NEW in build.why
        assert left(machine) == [STAGED]
        assert not any("dkms" in command for command in machine.commands)

    def test_what_dkms_does_not_build_for_a_kernel_is_said(self, machine: Machine) -> None:
        """77: the source excludes the kernel (BUILD_EXCLUSIVE)."""
        machine.builds = 77
        (build,) = stage(machine)
        assert build.whole and build.why == "dkms ended with 77 (Error! Bad return status)"

    def test_a_module_that_does_not_compile_is_an_error_before_anything_has_changed(self, machine: Machine) -> None:
        machine.builds = 10
        with pytest.raises(GpuOpsError, match="#error no such kernel") as told:
            stage(machine)
        assert told.value.refusals[0].code == "driver.kernel_module_not_built_ahead"
        assert left(machine) == []

    def test_of_a_kernel_that_neither_runs_nor_boots_it_is_remembered(self, machine: Machine) -> None:
        machine.builds = 10
        put(Path(machine.root), "/boot/vmlinuz-" + KERNEL, "")
        machine.make_directory("/lib/modules/%s/kernel" % KERNEL, 0o755)
        assert stage(machine, essential=False) == []
        assert Journal(machine).recall("driver")[kernels.NOTE] == {KERNEL: NEW}

    @pytest.mark.parametrize("ended, log, said", (
        (5, "cc1: fatal error: error writing to x.s: No space left on device\n", "No space left on device"),
        (7, "cc1: fatal error: error writing to x.s: No space left on device\n", "No space left on device"),
        (10, "cc1: fatal error: error writing to x.s: No space left on device\n", "No space left on device"),
        (10, "make[3]: *** [scripts/Makefile.build:250: nvidia/nv.o] Killed\nmake[2]: *** [all] Error 2\n",
         r"nv\.o\] Killed"),
        (-9, "  CC [M]  nvidia/nv.o\n", "signal 9 ended nice"),
    ))
    def test_a_build_that_was_cut_off_says_nothing_of_the_kernel(
        self, machine: Machine, ended: int, log: str, said: str
    ) -> None:
        machine.builds, machine.log = ended, log
        put(Path(machine.root), "/boot/vmlinuz-" + KERNEL, "")
        machine.make_directory("/lib/modules/%s/kernel" % KERNEL, 0o755)
        with pytest.raises(GpuOpsError, match=said) as told:
            stage(machine, essential=False)
        assert told.value.refusals[0].code == "driver.build_hampered"
        assert left(machine) == [] and Journal(machine).recall("driver") == {}
        machine.builds = 0
        assert [build.whole for build in stage(machine, essential=False)] == [True]

    @pytest.mark.parametrize("ended", (10, 21))
    def test_a_build_that_fails_while_packages_are_unpacked_is_done_once_more(
        self, machine: Machine, ended: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Headers may be half there."""
        machine.builds = ended

        def unpacks(_host: Host) -> bool:
            machine.builds = 0
            return True

        monkeypatch.setattr(undisturbed, "package_manager_works", unpacks)
        assert [(build.whole, build.why) for build in stage(machine, essential=False)] == [(True, "")]
        assert Journal(machine).recall("driver") == {}
        machine.builds = ended
        monkeypatch.setattr(undisturbed, "package_manager_works", lambda _host: True)
        with pytest.raises(GpuOpsError) as told:
            stage(machine, essential=False)
        assert told.value.code == "driver.build_disturbed"
        assert left(machine) == [] and Journal(machine).recall("driver") == {}

    @pytest.mark.parametrize("essential", (True, False))
    def test_a_build_that_takes_too_long_leaves_nothing_and_holds_up_only_a_kernel_in_use(
        self, machine: Machine, essential: bool
    ) -> None:
        machine.hangs = True
        put(Path(machine.root), "/boot/vmlinuz-" + KERNEL, "")
        machine.make_directory("/lib/modules/%s/kernel" % KERNEL, 0o755)
        if essential:
            with pytest.raises(GpuOpsError) as told:
                stage(machine)
            assert told.value.code == "host.command_timed_out" and Journal(machine).recall("driver") == {}
        else:
            assert stage(machine, essential=False) == []
            assert Journal(machine).recall("driver")[kernels.NOTE] == {KERNEL: NEW}
        assert left(machine) == []

    @pytest.mark.parametrize("times", (1, 2))
    def test_headers_that_are_replaced_while_it_is_built_have_it_built_anew(
        self, machine: Machine, times: int
    ) -> None:
        """An update of the kernel's packages; the module has the symbols of those before."""
        symbols = Path(machine.path("/lib/modules/%s/build/Module.symvers" % KERNEL))

        def replaced() -> None:
            if machine.built <= times:
                symbols.write_text("symbols %d\n" % machine.built)

        machine.meanwhile = replaced
        if times == 1:
            assert [build.whole for build in stage(machine)] == [True] and machine.built == 2
            symbols.write_text("symbols of the next update\n")
            assert [build.whole for build in read_staged(machine)] == [False]
        else:
            with pytest.raises(GpuOpsError, match="changed the kernel's headers") as told:
                stage(machine)
            assert told.value.code == "driver.build_disturbed" and left(machine) == []

    def test_an_override_of_somebody_else_stays(self, machine: Machine) -> None:
        path = override_path("nvidia", NEW, KERNEL)
        machine.write(path, "STRIP[0]=no\n")
        (build,) = stage(machine)
        assert build.why == "%s is somebody else's" % path
        staging_executors.discard(machine, KERNEL)
        assert machine.read(path) == "STRIP[0]=no\n" and not machine.exists(STAGED)

    def test_a_package_file_that_is_gone_is_told(self, machine: Machine) -> None:
        machine.remove("%s/nvidia-kernel-open-dkms_%s-1_all.deb" % (archive.STORE, NEW))
        with pytest.raises(GpuOpsError, match="nvidia-kernel-open-dkms"):
            stage(machine)

    def test_a_package_file_that_cannot_be_unpacked_goes_and_is_fetched_anew(
        self, machine: Machine, tmp_path: Path
    ) -> None:
        """Its members end where their headers say, so that apt and we take it for whole."""
        name = "nvidia-kernel-open-dkms_%s-1_all.deb" % NEW
        ours = Path(machine.path("%s/%s" % (archive.STORE, name)))
        data = ours.read_bytes()
        ours.write_bytes(data[:-40] + bytes(20) + data[-20:])
        theirs = put(Path(machine.root), "/var/cache/apt/archives/" + name, "")
        theirs.write_bytes(ours.read_bytes())
        with pytest.raises(GpuOpsError, match="damaged.*%s" % re.escape(name)) as told:
            stage(machine)
        assert told.value.code == "driver.staged_archive_lost"
        assert (ours.exists(), theirs.exists(), left(machine)) == (False, False, [])
        package(tmp_path, tmp_path / "root", {"usr/src/nvidia-%s/dkms.conf" % NEW: CONF})
        assert [build.whole for build in stage(machine)] == [True]

    def test_a_sound_file_that_is_not_unpacked_for_want_of_space_stays(self, machine: Machine) -> None:
        put(Path(machine.root), STAGED + "/x", "")
        machine.root_is_full = True
        with pytest.raises(GpuOpsError) as told:
            stage(machine)
        assert told.value.code == "host.command_failed" and machine.list(archive.STORE)
        assert [build.whole for build in read_staged(machine) if build.kernel == KERNEL] == []

    def test_withdrawn_it_leaves_nothing(self, machine: Machine) -> None:
        stage(machine)
        staging_executors.withdraw(machine, Journal(machine), step())
        assert left(machine) == [] and read_staged(machine) == ()
        assert machine.list(archive.STORE), "packages are kept for the exchange"

    def test_an_override_alone_is_seen_and_withdrawn(self, machine: Machine) -> None:
        stage(machine)
        shutil.rmtree(machine.path(STAGED))
        assert read_staged(machine) == (StagedBuild(KERNEL),)
        staging_executors.discard(machine, KERNEL)
        assert left(machine) == []

    @pytest.mark.parametrize("version, stays", [(OLD, True), (NEW, False)])
    def test_it_is_used_up_when_the_kernel_has_it(self, machine: Machine, version: str, stays: bool) -> None:
        stage(machine)
        machine.installed[KERNEL] = version
        put(Path(machine.root), "/lib/modules/%s/updates/dkms/nvidia.ko" % KERNEL, "x")
        put(Path(machine.root), "/lib/modules/%s/modules.dep" % KERNEL, "updates/dkms/nvidia.ko:\n")
        staging_executors.discard_used(machine)
        assert bool(read_staged(machine)) == stays


class TestTaking:
    """The override as DKMS reads it (dkms, safe_source()): after the package's dkms.conf, in bash."""

    @staticmethod
    def taken(machine: Machine, conf: str = CONF, source: str = "int x;\n") -> "subprocess.CompletedProcess[str]":
        """DKMS's build, with a make that says what it is called with."""
        root = Path(machine.root)
        put(root, "usr/src/nvidia-%s/dkms.conf" % NEW, CONF)
        put(root, "usr/src/nvidia-%s/nvidia.c" % NEW, source)
        build = root / "build"
        build.mkdir(exist_ok=True)
        (root / "dkms.conf").write_text(conf)
        override = machine.read(override_path("nvidia", NEW, KERNEL)) or ""
        (root / "override").write_text(override.replace("sh " + STAGED, "sh %s%s" % (root, STAGED)))
        script = """
make() { echo "make $*"; }
dkms_tree=/var/lib/dkms module=nvidia module_version=%s kernelver=%s arch=x86_64 parallel_jobs=2
. ../dkms.conf; . ../override; eval "${MAKE[0]}" """ % (NEW, KERNEL)
        return subprocess.run(["bash", "-ec", script], cwd=build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)

    def test_the_module_is_taken_and_nothing_is_compiled(self, machine: Machine) -> None:
        stage(machine)
        done = self.taken(machine)
        assert done.returncode == 0 and "make" not in done.stdout and "built ahead" in done.stdout
        assert sorted(path.name for path in Path(machine.root, "build").iterdir()) == ["nvidia-uvm.ko", "nvidia.ko"]
        assert Path(machine.root, "build/nvidia.ko").read_text() == "nvidia of %s\n" % KERNEL

    @pytest.mark.parametrize("path", [
        directory(KERNEL) + "/modules/nvidia-uvm.ko", directory(KERNEL) + "/source.sha256",
        "/lib/modules/%s/build/Module.symvers" % KERNEL])
    def test_what_is_torn_or_of_another_kernel_is_compiled_as_dkms_would(self, machine: Machine, path: str) -> None:
        stage(machine)
        machine.write(path, "")
        done = self.taken(machine)
        assert done.returncode == 0 and not list(Path(machine.root, "build").iterdir())
        assert done.stdout.splitlines()[-1] == (
            "make -j2 KERNELRELEASE=%s -C /var/lib/dkms/nvidia/%s/build KERNEL_UNAME=%s modules"
            % (KERNEL, NEW, KERNEL))

    def test_another_source_of_the_same_version_is_compiled(self, machine: Machine) -> None:
        stage(machine)
        assert "make -j2" in self.taken(machine, source="int y;\n").stdout

    def test_withdrawn_under_dkms_it_is_compiled(self, machine: Machine) -> None:
        stage(machine)
        machine.remove(directory(KERNEL) + "/stage.json")
        assert "make -j2" in self.taken(machine).stdout

    @pytest.mark.parametrize("suffix, words", [("xz", ["xz"]), ("gz", ["gzip"])])
    def test_a_module_that_the_distribution_compresses_is_taken(
        self, machine: Machine, suffix: str, words: List[str]
    ) -> None:
        stage(machine)
        place = Path(machine.path(directory(KERNEL)))
        for name in MODULES:
            subprocess.run([*words, str(place / "modules" / (name + ".ko"))], check=True)
        listed = subprocess.run(
            ["sha256sum", *("%s/modules/%s.ko.%s" % (directory(KERNEL)[1:], name, suffix) for name in MODULES)],
            cwd=machine.root, stdout=subprocess.PIPE, text=True, check=True).stdout
        (place / "modules.sha256").write_text(listed)
        assert "built ahead" in self.taken(machine).stdout
        assert Path(machine.root, "build/nvidia.ko").read_text() == "nvidia of %s\n" % KERNEL

    def test_modules_are_put_where_dkms_looks_for_them(self, machine: Machine) -> None:
        """Debian's own driver is installed under another name than it is built under, and below a directory."""
        stage(machine)
        done = self.taken(machine, CONF + 'BUILT_MODULE_LOCATION[0]="kernel"\nDEST_MODULE_NAME[0]="nvidia"\n'
                          'BUILT_MODULE_NAME[0]="nv"\nMAKE[0]="env A=b make all"\n')
        assert "built ahead" in done.stdout and Path(machine.root, "build/kernel/nv.ko").is_file()

    def test_a_source_without_a_command_of_its_own_has_that_of_dkms(self, machine: Machine) -> None:
        stage(machine)
        done = self.taken(machine, 'kernel_source_dir=/headers\n' + CONF.replace("MAKE[0]", "UNUSED"), "int y;\n")
        assert done.stdout.splitlines()[-1] == (
            "make -j2 KERNELRELEASE=%s -C /headers M=/var/lib/dkms/nvidia/%s/build" % (KERNEL, NEW))


class TestApproval:
    def test_an_exchange_that_was_approved_before_it_was_staged_is_covered_by_that(self) -> None:
        world = World(kernels=(Kernel(KERNEL, headers=True), Kernel(OTHER, headers=True)))
        world.facts = facts(A100)
        world.apply(world.plan(policy()))
        world.say_loaded()
        approved = world.plan(policy(version=NEW))
        world.apply(world.plan(policy(version=NEW, state="staged")))
        assert len(world.staged) == 2
        needed = world.plan(policy(version=NEW))
        assert needed.steps and differences(needed, approved) == ()
        world.apply(needed)
        assert world.staged == () and world.plan(policy(version=NEW)).steps == ()
