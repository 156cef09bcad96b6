# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every role: its defaults are those of its argument specification, its variables carry its name, it is described."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest
import yaml

ROLES_DIRECTORY = Path(__file__).resolve().parents[2] / "roles"
ROLES: List[str] = sorted(path.name for path in ROLES_DIRECTORY.glob("*") if (path / "tasks").is_dir())


def load(path: Path) -> Dict[str, Any]:
    return (yaml.safe_load(path.read_text()) or {}) if path.is_file() else {}


def specifications(role: str) -> Dict[str, Any]:
    return load(ROLES_DIRECTORY / role / "meta" / "argument_specs.yml").get("argument_specs", {})


def options(role: str) -> Dict[str, Any]:
    merged: Dict[str, Any] = {}
    for specification in specifications(role).values():
        merged.update(specification.get("options", {}))
    return merged


def in_spec_by_description(role: str, name: str) -> bool:
    """Whether the default is a template whose result is no text: a specification's default must be of its type."""
    option, value = options(role).get(name, {}), load(ROLES_DIRECTORY / role / "defaults" / "main.yml")[name]
    return "default" not in option and option.get("type", "str") != "str" and str(value).startswith("{{")


def test_the_collection_has_no_empty_role() -> None:
    directories = [path for path in ROLES_DIRECTORY.glob("*") if path.is_dir()]
    assert [path.name for path in directories if not (path / "tasks" / "main.yml").is_file()] == []


@pytest.mark.parametrize("role", ROLES)
class TestRole:
    def test_defaults_equal_the_argument_specification(self, role: str) -> None:
        defaults = load(ROLES_DIRECTORY / role / "defaults" / "main.yml")
        with_default = {name: option["default"] for name, option in options(role).items() if "default" in option}
        comparable = {name: value for name, value in defaults.items() if not in_spec_by_description(role, name)}
        assert comparable == with_default

    def test_an_option_without_default_is_required_or_says_what_its_absence_means(self, role: str) -> None:
        silent = [name for name, option in options(role).items()
                  if "default" not in option and not option.get("required") and not option.get("description")]
        assert silent == []

    def test_every_variable_carries_the_prefix_of_the_role(self, role: str) -> None:
        variables = [*options(role), *load(ROLES_DIRECTORY / role / "vars" / "main.yml")]
        strays = [name for name in variables if not name.lstrip("_").startswith("%s_" % role)]
        assert strays == []

    def test_every_entry_point_and_option_is_described(self, role: str) -> None:
        points = specifications(role)
        assert "main" in points, "meta/argument_specs.yml has no entry point main"
        assert [name for name, point in points.items() if not point.get("short_description")] == []
        assert [name for name, option in options(role).items() if not option.get("description")] == []
        assert [name for name, option in options(role).items() if not option.get("type")] == []

    def test_every_specified_entry_point_has_its_task_file(self, role: str) -> None:
        tasks = ROLES_DIRECTORY / role / "tasks"
        assert [name for name in specifications(role) if not (tasks / (name + ".yml")).is_file()] == []

    def test_the_readme_names_every_variable(self, role: str) -> None:
        readme = ROLES_DIRECTORY / role / "README.md"
        assert readme.is_file(), "the role has no README.md"
        text = readme.read_text()
        assert [name for name in options(role) if name not in text] == []

    def test_meta_main_describes_the_role(self, role: str) -> None:
        information = load(ROLES_DIRECTORY / role / "meta" / "main.yml").get("galaxy_info", {})
        assert information.get("description")
        assert information.get("license")
        assert information.get("min_ansible_version") == "2.16"
