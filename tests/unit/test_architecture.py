# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who may import whom, and who may touch the outside world: read from the code itself."""
from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Iterator, Set, Tuple

import pytest
import workspace

UTILS = Path(__file__).resolve().parents[2] / "plugins" / "module_utils"
ROOMS = sorted(path.name for path in UTILS.iterdir() if path.is_dir() and path.name != "__pycache__")
CAPABILITIES = [room for room in ROOMS
                if room not in ("core", "hardware", "packages", "validation", "health", "rollout", "cluster", "fleet",
                                "gpuops", "mains")]
ALLOWED = {
    "core": set(),
    "hardware": {"core"},
    "packages": {"core"},
    "rollout": {"core"},
    "cluster": {"core", "rollout"},
    "fleet": {"core"},
    # What devices have proved is what ends a finding: it reads the record of that, and nothing else of the validation
    "health": {"core", "hardware", "validation"},
    "validation": {"core", "hardware", "packages", *CAPABILITIES},
    # The command: what the modules call, and where the agent puts its policy
    "gpuops": {"core", "hardware", "packages", "validation", "health", "registry", "writing", "agent"},
    "mains": {"core", "hardware", "packages", "validation", "health", "cluster", "registry", "writing", *CAPABILITIES},
    **{room: {"core", "hardware", "packages"} for room in CAPABILITIES},
    # What it brings looks at the host's health: how is a part of its policy, and what was found goes with it. What it
    # says of its own Node is a claim as custody's are
    "agent": {"core", "hardware", "packages", "health", "cluster"},
    # What it mends is what was found
    "repair": {"core", "hardware", "health"},
}
OUTSIDE_WORLD = {"subprocess", "socket", "shutil", "tempfile", "urllib.request", "http.client"}
MAY_TOUCH_IT = {"core/host.py", "gpuops/serving.py", "packages/apt/index.py", "runtime/cri.py",
                "runtime/backends/docker/engine.py", "agent/api.py"}


def sources() -> Iterator[Tuple[str, Path]]:
    for room in ROOMS:
        for path in sorted((UTILS / room).rglob("*.py")):
            yield room, path


def imported(path: Path) -> Iterator[str]:
    """Absolute names that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def imports(path: Path) -> Set[str]:
    """Absolute names of imported modules; relative ones as 'module_utils.<room>...'."""
    names: Set[str] = set()
    package = ["module_utils", *path.relative_to(UTILS).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            names.add(base + (node.module or ""))
    return names


@pytest.mark.parametrize("room, path", list(sources()), ids=lambda value: getattr(value, "name", value))
def test_rooms_import_only_what_the_house_allows(room: str, path: Path) -> None:
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("module_utils.") and name.count(".") >= 1}
    assert ours - {room, ""} <= ALLOWED[room]


def test_of_the_validation_health_reads_what_devices_have_proved_alone() -> None:
    """The checks are judged at one moment, and are no history; what ends a finding is one."""
    taken = {name for path in (UTILS / "health").glob("*.py") for name in imports(path)
             if name.startswith("module_utils.validation")}
    assert taken == {"module_utils.validation.compute", "module_utils.validation.compute.levels"}


def test_packages_say_what_they_are_in_their_modules() -> None:
    """ansible-test wants nothing in a package's own file (sanity test empty-init)."""
    assert [str(path) for path in UTILS.parent.rglob("__init__.py") if path.stat().st_size] == []


def test_plugins_import_each_other_relatively() -> None:
    """Modules too: they are run by their full names, on a host as on the controller."""
    assert [str(path) for path in UTILS.parent.rglob("*.py")
            if any(name.startswith("ansible_collections.gpuops") for name in imported(path))] == []


@pytest.mark.parametrize("room, path", list(sources()), ids=lambda value: getattr(value, "name", value))
def test_only_the_host_door_touches_the_outside_world(room: str, path: Path) -> None:
    if path.relative_to(UTILS).as_posix() in MAY_TOUCH_IT:
        return
    assert not imports(path) & OUTSIDE_WORLD


@pytest.mark.parametrize("room", CAPABILITIES)
def test_capabilities_are_laid_out_alike(room: str) -> None:
    there = {path.name for path in (UTILS / room).glob("*.py")}
    assert there >= {"__init__.py", "capability.py", "policy.py", "observation.py", "planner.py"}


def test_the_registry_knows_every_capability_by_one_name() -> None:
    taken = {(node.module, alias.name) for node in ast.walk(ast.parse((UTILS / "registry.py").read_text()))
             if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in CAPABILITIES
             for alias in node.names}
    assert {name for module, name in taken if module.endswith(".capability")} == {"CAPABILITY"}
    assert {module for module, _name in taken} >= {room + ".capability" for room in CAPABILITIES}


CAPABILITIES_OF_MODULES = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
found = {}
for name in sys.argv[2:]:
    for module in [module for module in sys.modules if module.startswith("ansible_collections.gpuops.")]:
        del sys.modules[module]
    importlib.import_module("ansible_collections.gpuops.nvidia.plugins.module_utils.mains." + name)
    found[name] = sorted(
        module.split(".")[-2] for module in sys.modules
        if module.startswith("ansible_collections.gpuops.") and module.endswith(".capability"))
json.dump(found, sys.stdout)
"""


def test_a_module_that_writes_imports_its_own_capability_alone() -> None:
    """Most of the time of a call on a host is Python that imports."""
    writers = sorted(path.stem for path in (UTILS / "mains").glob("*.py") if "import write\n" in path.read_text())
    told = subprocess.run([sys.executable, "-c", CAPABILITIES_OF_MODULES, str(workspace.collections_root()), *writers],
                          check=True, text=True, stdout=subprocess.PIPE).stdout
    found = json.loads(told)
    assert sorted(sum(found.values(), [])) == sorted([*CAPABILITIES, *("core" for _each in writers)])
    assert all(len(imported) == 2 for imported in found.values()), found


@pytest.mark.parametrize(
    "room, path", [(r, p) for r, p in sources() if p.name == "planner.py" or r in ("rollout", "fleet")])
def test_planners_are_pure(room: str, path: Path) -> None:
    names = imports(path)
    assert not any(name.endswith((".host", ".journal")) or name in ("os", "time", "random") for name in names)
