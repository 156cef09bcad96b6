# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a new capability gets beside its engine: documentation, a role, a place in the plan, by the recipe alone.

unit/newcomer has what somebody writes who follows docs/architecture.md, "To add a capability". Here it is put into a
copy of the collection, the program that makes the documentation is run there, and so is the role, on this machine with
directories of its own in place of those that are written.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Set

import pytest
import yaml
from controller import Controller
from workspace import REPOSITORY, copy_content

NEWCOMER = REPOSITORY / "tests" / "unit" / "newcomer"
WRITTEN = NEWCOMER / "collection"
ADDED: Dict[str, Dict[str, str]] = yaml.safe_load((NEWCOMER / "additions.yml").read_text())
# A page is made from tests/lab/charts
OF_NO_USE = ("tests/benchmarks/", "tests/integration/", "tests/soak/", "tests/unit/newcomer/", *(
    "tests/lab/" + path.name for path in (REPOSITORY / "tests" / "lab").iterdir() if path.name != "charts"))
# Those of the unit tests that hold every capability, module, role and variable to the rules
RULES = ("test_architecture.py", "test_docs.py", "test_refusal_codes.py", "test_roles.py", "test_variables.py")
ROLE, SETTINGS = "gpuops.nvidia.sysctl_settings", "etc/sysctl.d/90-gpuops.conf"
THEIRS = b"# caf\xe9\nvm.swappiness = 60\n"


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a copy of the collection is that has the capability, as its author leaves it."""
    root = tmp_path_factory.mktemp("newcomer")
    target = copy_content(root, leave_out=OF_NO_USE)
    shutil.copytree(WRITTEN, target, dirs_exist_ok=True)
    for name, additions in ADDED.items():
        text = (target / name).read_text()
        for place, added in additions.items():
            assert text.count(place) == 1, "%s: %r is there %d times" % (name, place, text.count(place))
            text = text.replace(place, place + added)
        (target / name).write_text(text)
    subprocess.run(["git", "add", "--all"], cwd=target, check=True)
    subprocess.run([sys.executable, "-B", "tests/gates/documentation.py"], cwd=target, check=True)
    return root


@pytest.fixture
def collection(collections: Path) -> Path:
    return collections / "ansible_collections" / "gpuops" / "nvidia"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """What a module finds under /etc/sysctl.d, /var/lib and /run; the interpreter is what leads it there."""
    private = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*private, "mount", "-t", "tmpfs", "tmpfs", "/etc/sysctl.d"], check=False).returncode:
        pytest.skip("needs a mount namespace of its own")
    root = tmp_path / "host"
    mounts = []
    for directory in ("etc/sysctl.d", "var/lib", "run"):
        (root / directory).mkdir(parents=True)
        mounts.append("mount --bind '%s' '/%s'" % (root / directory, directory))
    interpreter = root / "python"
    interpreter.write_text("#!/bin/sh\nexec %s sh -c '%s && exec \"$@\"' sh '%s' \"$@\"\n" % (
        " ".join(private), " && ".join(mounts).replace("'", "'\\''"), sys.executable))
    interpreter.chmod(0o755)
    (root / SETTINGS).write_bytes(THEIRS)
    (root / SETTINGS).chmod(0o640)
    return root


def files(root: Path) -> Dict[str, Any]:
    """What a user has there, with modes."""
    return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode) for path in root.rglob("*")
            if path.is_file() and "gpuops" not in path.parts}


def changed(collection: Path, names: Set[str]) -> Set[str]:
    """Files of the copy that are not as they are in the repository, beside these."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=collection,
                            check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return {name for name in listed if name not in names and (
        not (REPOSITORY / name).exists() or (REPOSITORY / name).read_bytes() != (collection / name).read_bytes())}


def test_the_recipe_names_every_place_and_no_other() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    recipe = page.split("## To add a capability\n")[1].split("\n## ")[0]
    places = [place.replace("<capability>/", "sysctl/").replace("<module>", "sysctl_settings")
              for place in re.findall(r"^\| `([^`]+)` \|", recipe, re.MULTILINE)]
    written = {str(path.relative_to(WRITTEN)) for path in WRITTEN.rglob("*.py")}
    assert written and {place for place in places if not place.endswith("/")} == {
        *ADDED, *(name for name in written if "/sysctl/" not in name)}
    assert [place for place in places if place.endswith("/")] == ["plugins/module_utils/sysctl/"]


@pytest.mark.variation
def test_the_rest_is_made(collection: Path) -> None:
    written = {*ADDED, *(str(path.relative_to(WRITTEN)) for path in WRITTEN.rglob("*.py"))}
    assert changed(collection, written) == {
        "docs/refusals.md", "docs/variables.md", "meta/runtime.yml", "plugins/action/sysctl_settings.py",
        "plugins/module_utils/mains/sysctl_settings.py", "plugins/modules/gpu_plan.py",
        "roles/sysctl_settings/README.md", "roles/sysctl_settings/defaults/main.yml",
        "roles/sysctl_settings/meta/argument_specs.yml", "roles/sysctl_settings/meta/main.yml",
        "roles/sysctl_settings/tasks/main.yml"}


def test_its_documentation_is_that_of_its_module(collection: Path) -> None:
    role = collection / "roles" / "sysctl_settings"
    options = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert list(options) == ["sysctl_settings_lines", "sysctl_settings_state", "sysctl_settings_allowed_disruption",
                             "sysctl_settings_approved_plan"]
    assert options["sysctl_settings_lines"] == {
        "description": ["The settings, each a line of the file. With O(sysctl_settings_state=absent) none is used."],
        "type": "list", "elements": "str", "default": []}
    assert yaml.safe_load((role / "defaults" / "main.yml").read_text())["sysctl_settings_lines"] == []
    readme = (role / "README.md").read_text()
    assert readme.startswith("# %s\n\nKeep settings of the kernel that GPU work needs.\n" % ROLE)
    assert "| `sysctl_settings_state` | str | `gpu_state`, else `present` | `present` writes the file," in readme
    assert "### sysctl.no_setting\n" in (collection / "docs" / "refusals.md").read_text()
    module = (collection / "plugins" / "modules" / "sysctl_settings.py").read_text()
    assert "\ndeferred:\n" in module.split("RETURN", 1)[1]


@pytest.mark.variation
def test_a_second_making_makes_nothing(collection: Path) -> None:
    done = subprocess.run([sys.executable, "-B", "tests/gates/documentation.py"], cwd=collection, check=True,
                          stdout=subprocess.PIPE, text=True)
    assert done.stdout == ""


@pytest.mark.variation
def test_it_keeps_the_rules_of_all_capabilities(collections: Path, collection: Path) -> None:
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(collections), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *("tests/unit/" + name for name in RULES)],
        cwd=collection, env=environment, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 500


def test_its_module_is_documented_for_ansible_doc(collections: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ansible.cli.doc", "--json", ROLE], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_HOME": str(tmp_path)})
    told = yaml.safe_load(done.stdout)[ROLE]
    assert {"lines", "state", "lock_timeout"} <= set(told["doc"]["options"]) and "refusals" in told["return"]


class TestItsRole:
    """ansible-playbook as a user starts it, the module in a mount namespace."""

    @pytest.fixture
    def play(self, controller: Controller, collections: Path, host: Path) -> Any:
        def play(*options: str, **variables: Any) -> Dict[str, Any]:
            task = {"ansible.builtin.include_role": {"name": ROLE}}
            results = controller.tasks(
                [task], *options, environment={"ANSIBLE_COLLECTIONS_PATH": str(collections)},
                variables={"ansible_python_interpreter": str(host / "python"),
                           **{"sysctl_settings_" + name: value for name, value in variables.items()}})
            return dict(results[-1][0])

        return play

    @pytest.mark.variation
    def test_check_mode_tells_with_a_diff_what_the_run_does(self, play: Any, host: Path) -> None:
        before = files(host)
        foretold = play("--check", "--diff", lines=["vm.swappiness = 10"])
        assert foretold.get("changed"), foretold["msg"]
        assert files(host) == before and not (host / "var/lib/gpuops").exists()
        assert "-# caf\\xe9" in foretold["text"], "bytes that are no text are told as such"
        done = play("--diff", lines=["vm.swappiness = 10"], approved_plan=foretold["plan"])
        assert done["changed"] and done["diff"] == foretold["diff"] and done["plan"] == foretold["plan"]
        assert done["diff"][0]["after"] == (host / SETTINGS).read_text()
        assert not play(lines=["vm.swappiness = 10"])["changed"]
        assert play(state="absent")["changed"] and files(host) == before

    def test_a_refusal_names_the_variable(self, play: Any, host: Path) -> None:
        before = files(host)
        told = play(lines=["vm.swappiness"])
        assert told["failed"] and told["code"] == "sysctl.no_setting"
        assert told["option"] == "sysctl_settings_lines" and "`sysctl_settings_lines`" in told["remedy"]
        assert files(host) == before


def test_the_plan_of_a_host_has_its_steps(controller: Controller, collections: Path, host: Path) -> None:
    task = {"gpuops.nvidia.gpu_plan": {"sysctl": {"lines": ["vm.swappiness = 10"]}}}
    ((told,),) = controller.tasks(
        [task], environment={"ANSIBLE_COLLECTIONS_PATH": str(collections)},
        variables={"ansible_python_interpreter": str(host / "python")})
    assert [step["id"] for step in told["plan"]["steps"]] == ["sysctl/file.write//" + SETTINGS]
