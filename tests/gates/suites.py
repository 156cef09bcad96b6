# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gates there are, and the suites that `make` runs."""
from __future__ import annotations

import os
import shutil
import tarfile
from importlib import resources
from pathlib import Path
from typing import Callable, Dict, List

import cores
import sanity
import workspace
from gate import Bench, Gate, GateFailed, Word

REPOSITORY = workspace.REPOSITORY
PYTEST_DIRECTORIES = ("tests/unit", "tests/gates/tests", "tests/lab/tests")
# What uses one processor, or waits for its disk and the network, runs behind the tests in what they leave over
BESIDE_SECONDS = 5400
# The log says which tests were the slowest
_ALWAYS = ("-p", "no:cacheprovider", "--durations=25", "--durations-min=5")
# Unit tests that run ansible-playbook, apt, dpkg and dnf by the dozen, NVIDIA's own tool, Helm, Prometheus, an API
# server or node-problem-detector (which are built first), or that stop a run at many of its steps: too long for the
# inner loop. Those that only wait, for an alert to fire, come first: at the end nobody would use the processors
# meanwhile
PROGRAMS = ("tests/unit/monitoring/test_promtool.py", "tests/unit/monitoring/test_prometheus.py",
            "tests/unit/monitoring/test_exporter_page.py", "tests/unit/cluster/components/test_carrying_out.py",
            "tests/unit/cluster/custody/test_disturbed.py", "tests/unit/cluster/test_beside_charts.py",
            "tests/unit/cluster/test_budget.py", "tests/unit/cluster/test_own_node.py",
            "tests/unit/cluster/test_problem_detector.py", "tests/unit/core/test_injected.py",
            "tests/unit/driver/test_migration.py", "tests/unit/driver/test_precompiled.py",
            "tests/unit/driver/test_runfile.py", "tests/unit/driver/test_way_back.py", "tests/unit/packages",
            "tests/unit/playbooks", "tests/unit/mig/test_beside_mig_parted.py", "tests/unit/mig/test_transitions.py")


def all_gates() -> List[Gate]:
    return [*background_gates(), *quick_gates(), *program_gates(), *packaging_gates(), *sanity_gates(),
            *laboratory_gates(), *slow_gates()]


def names(gates: List[Gate]) -> List[str]:
    return [gate.name for gate in gates]


def test_suite() -> List[str]:
    """Everything, but of the releases of ansible-core only the oldest and the newest that this machine can run."""
    ends = {"sanity-%s" % release for release in cores.oldest_and_newest()}
    left_out = set(names(sanity_gates())) - ends | set(names(slow_gates()))
    return [name for name in names(all_gates()) if name not in left_out]


SUITES: Dict[str, Callable[[], List[str]]] = {
    "check": lambda: names(quick_gates()),
    "sanity": lambda: names(sanity_gates()),
    "test": test_suite,
    "slow": lambda: names(slow_gates()),
}


def quick_gates() -> List[Gate]:
    return [
        Gate("ruff", "ruff", _ruff, 60),
        Gate("pycodestyle", "pycodestyle, as ansible-test's pep8 test has it", _pycodestyle, BESIDE_SECONDS,
             background=True),
        Gate("yamllint", "yamllint", _yamllint, 60),
        Gate("mypy", "mypy, strict", _mypy, BESIDE_SECONDS, background=True),
        Gate("changelog", "changelog fragments", _changelog, BESIDE_SECONDS, background=True),
        Gate("ansible-lint", "ansible-lint, production profile", _ansible_lint, BESIDE_SECONDS, background=True),
        Gate("docs", "antsibull-docs, documentation of plugins", _docs, BESIDE_SECONDS, background=True),
        Gate("unit", "unit tests", _unit, 1500),
    ]


def program_gates() -> List[Gate]:
    return [Gate("programs", "unit tests that run ansible-playbook, apt, dpkg, dnf, zypper and Prometheus", _programs,
                 2700)]


def sanity_gates() -> List[Gate]:
    return [
        Gate("sanity-%s" % release, "ansible-test sanity, ansible-core %s" % release, sanity.work(release),
             BESIDE_SECONDS, background=True)
        for release in cores.RELEASES
    ]


def packaging_gates() -> List[Gate]:
    return [Gate("package", "collection built, installed from the tarball and used", _package, BESIDE_SECONDS,
                 background=True)]


def background_gates() -> List[Gate]:
    return [Gate("lab-parts", "parts of the laboratory", _lab_parts, BESIDE_SECONDS, background=True)]


def laboratory_gates() -> List[Gate]:
    gates = [Gate("molecule", "molecule, on a laboratory host", _molecule, 900, needs=("lab-parts",))]
    if any((REPOSITORY / "tests" / "integration").glob("test_*.py")):
        gates.append(Gate("integration", "tests on laboratory hosts", _integration, 4000, needs=("lab-parts",)))
    return gates


def slow_gates() -> List[Gate]:
    return [Gate("slow", "Debian's own driver, compiled, and an upgrade of a fleet", _slow, 4000),
            Gate("unit-variations", "variations of unit tests and of those that run programs", _unit_variations, 3600),
            Gate("variations", "variations of the tests on laboratory hosts", _variations, 4000, needs=("lab-parts",))]


def _tool(name: str) -> Word:
    return workspace.venv() / "bin" / name


def _python_sources() -> List[str]:
    return [name for name in workspace.source_files() if name.endswith(".py")]


def _ruff(bench: Bench) -> None:
    ruff: List[Word] = [_tool("ruff"), "check", "--cache-dir", workspace.work_root() / "ruff"]
    bench.run([*ruff, *_python_sources()], cwd=REPOSITORY)


def _pycodestyle(bench: Bench) -> None:
    """Continuation lines, which ruff knows nothing of and for which sanity takes minutes."""
    ignored = (resources.files("ansible_test") / "_util/controller/sanity/pep8/current-ignore.txt").read_text("utf-8")
    codes = [line for line in ignored.splitlines() if line and not line.startswith("#")]
    bench.run([_tool("pycodestyle"), "--config", os.devnull, "--max-line-length", "160", "--ignore", ",".join(codes),
               *(name for name in _python_sources() if name.startswith("plugins/"))], cwd=REPOSITORY)


def _yamllint(bench: Bench) -> None:
    kinds = (".yml", ".yaml", ".yamllint", ".ansible-lint")
    files = [name for name in workspace.source_files() if name.endswith(kinds)]
    bench.run([_tool("yamllint"), "--strict", *files], cwd=REPOSITORY)


def _mypy(bench: Bench) -> None:
    root = workspace.collections_root()
    cache = workspace.work_root() / "mypy"
    mypy: List[Word] = [_tool("mypy"), "--config-file", REPOSITORY / "pyproject.toml"]
    plugins = root / "ansible_collections" / "gpuops" / "nvidia" / "plugins"
    bench.run([*mypy, "--cache-dir", cache / "plugins", plugins], cwd=root, env={"MYPYPATH": str(root)})
    gates = Path(__file__).parent
    bench.run([*mypy, "--cache-dir", cache / "gates", *sorted(gates.glob("*.py"))], cwd=gates,
              env={"MYPYPATH": str(gates)})


def _changelog(bench: Bench) -> None:
    bench.run([_tool("antsibull-changelog"), "lint"], cwd=REPOSITORY)


def _ansible_lint(bench: Bench) -> None:
    root = workspace.work_root() / "lint"
    target = workspace.copy_content(root, leave_out=("tests/",))
    bench.run([_tool("ansible-lint"), "--offline", "--strict", "--profile", "production"], cwd=target,
              env={"ANSIBLE_COLLECTIONS_PATH": str(root)})


def _docs(bench: Bench) -> None:
    root = workspace.work_root() / "lint"
    target = workspace.copy_content(root, leave_out=("tests/",))
    lint: List[Word] = [_tool("antsibull-docs"), "lint-collection-docs", "--plugin-docs",
                        "--validate-collection-refs=dependent"]
    bench.run([*lint, target], cwd=target, env={"ANSIBLE_COLLECTIONS_PATH": str(root)})


def _unit(bench: Bench) -> None:
    directories = [directory for directory in PYTEST_DIRECTORIES if any((REPOSITORY / directory).rglob("test_*.py"))]
    # What these leave of the processors goes to what runs in the background
    bench.pytest([*_pytest(_processors()), "-m", "not variation", *directories,
                  *("--ignore=" + directory for directory in PROGRAMS)], cwd=REPOSITORY)


def _programs(bench: Bench) -> None:
    bench.pytest([*_pytest(_waiting_workers()), "-m", "not variation", *PROGRAMS], cwd=REPOSITORY)


def _unit_variations(bench: Bench) -> None:
    bench.pytest([*_pytest(_waiting_workers()), "-m", "variation", *PYTEST_DIRECTORIES], cwd=REPOSITORY)


def _pytest(workers: int) -> List[Word]:
    return [_tool("pytest"), "--quiet", "--numprocesses", str(workers), *_ALWAYS]


def _processors() -> int:
    return os.cpu_count() or 1


def _waiting_workers() -> int:
    """For tests that wait for a disk, or for programs, a third of their time."""
    return _processors() + 1


def _package(bench: Bench) -> None:
    scratch = workspace.work_root() / "package"
    shutil.rmtree(scratch, ignore_errors=True)
    source = workspace.copy_content(workspace.work_root() / "build", leave_out=())
    galaxy: List[Word] = [_tool("ansible-galaxy"), "collection"]
    bench.run([*galaxy, "build", "--output-path", scratch], cwd=source)
    tarball = next(scratch.glob("gpuops-nvidia-*.tar.gz"))
    with tarfile.open(tarball) as archive:
        bench.write("\n".join(archive.getnames()))
        strays = [name for name in archive.getnames() if name.startswith(workspace.NOT_CONTENT)]
    if strays:
        raise GateFailed("the tarball holds what users do not need: %s" % ", ".join(strays[:5]))
    bench.note("tarball of %d KiB" % (tarball.stat().st_size // 1024))
    installed = scratch / "installed"
    only_installed = {"ANSIBLE_COLLECTIONS_PATH": str(installed)}
    bench.run([*galaxy, "install", "--offline", "--collections-path", installed, tarball], env=only_installed)
    bench.run([_tool("ansible"), "localhost", "--inventory", "localhost,", "--connection", "local",
               "--extra-vars", "ansible_python_interpreter=%s" % _tool("python"), "--module-name",
               "gpuops.nvidia.gpu_info"], cwd=scratch, env=only_installed)


def _slow(bench: Bench) -> None:
    bench.pytest([_tool("pytest"), "--verbose", *_ALWAYS, "tests/slow"], cwd=REPOSITORY)


def _lab_parts(bench: Bench) -> None:
    bench.run([_tool("python"), REPOSITORY / "tests" / "lab" / "lab", "build"], cwd=REPOSITORY)


def _molecule(bench: Bench) -> None:
    bench.run([_tool("molecule"), "test", "--all"], cwd=REPOSITORY, env={"MOLECULE_COMMAND_BORDERS": "0"})


def _integration(bench: Bench) -> None:
    _on_hosts(bench, "not variation")


def _variations(bench: Bench) -> None:
    _on_hosts(bench, "variation")


def _on_hosts(bench: Bench, which: str) -> None:
    # Those that share a laboratory stay together
    side_by_side: List[Word] = ["--numprocesses", str(_waiting_workers()), "--dist", "loadscope",
                                "--no-loadscope-reorder"]
    bench.pytest([_tool("pytest"), "--verbose", *_ALWAYS, "-m", which, *side_by_side, "tests/integration"],
                 cwd=REPOSITORY)
