# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every module: documented with its attributes, its options, what it returns and examples that can be run."""
from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Dict, List

import pytest
import yaml
from documentation import documentation_blocks

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
MODULES: List[str] = sorted(path.stem for path in (PLUGINS / "modules").glob("*.py") if path.stem != "__init__")
FRAGMENT_PREFIX = "gpuops.nvidia."
LONGEST_MAIN = 60
# A line of the table of fields in the docstring of a class
FIELD = re.compile(r"    [a-z_]+(?:, [a-z_]+)*: +(?=\S)")


def fragment(name: str) -> Dict[str, Any]:
    """The documentation of one of our fragments, ``FILE`` or ``FILE.part``."""
    file_name, part = (name[len(FRAGMENT_PREFIX):].split(".") + ["documentation"])[:2]
    path = PLUGINS / "doc_fragments" / (file_name + ".py")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if part.upper() in names:
                return yaml.safe_load(node.value.value) or {}
    raise AssertionError("%s has no part %s" % (path, part))


def attributes(module: str) -> Dict[str, Any]:
    own = documentation_blocks(PLUGINS / "modules" / (module + ".py"))["DOCUMENTATION"]
    merged: Dict[str, Any] = {}
    for name in own.get("extends_documentation_fragment", []):
        if name.startswith(FRAGMENT_PREFIX):
            for attribute, text in fragment(name).get("attributes", {}).items():
                merged.setdefault(attribute, {}).update(text)
    for attribute, text in own.get("attributes", {}).items():
        merged.setdefault(attribute, {}).update(text)
    return merged


@pytest.mark.parametrize("module", MODULES)
class TestModule:
    def test_it_is_documented(self, module: str) -> None:
        blocks = documentation_blocks(PLUGINS / "modules" / (module + ".py"))
        assert {"DOCUMENTATION", "EXAMPLES", "RETURN"} <= set(blocks)
        assert blocks["DOCUMENTATION"]["module"] == module
        assert blocks["DOCUMENTATION"]["short_description"]

    def test_it_says_how_it_stands_to_check_mode_and_diff(self, module: str) -> None:
        stated = attributes(module)
        assert {"check_mode", "diff_mode"} <= set(stated)
        for name in ("check_mode", "diff_mode"):
            assert stated[name].get("support") in ("full", "partial", "none", "N/A"), name
        assert stated["check_mode"]["support"] == "full"

    def test_its_examples_are_tasks_with_names_that_call_it_by_its_full_name(self, module: str) -> None:
        examples = documentation_blocks(PLUGINS / "modules" / (module + ".py"))["EXAMPLES"]
        assert examples and all(task.get("name") for task in examples)
        assert any("gpuops.nvidia.%s" % module in task for task in examples)

    def test_what_it_returns_is_described(self, module: str) -> None:
        returned = documentation_blocks(PLUGINS / "modules" / (module + ".py"))["RETURN"]
        assert returned
        for key, value in returned.items():
            assert {"description", "returned", "type"} <= set(value), key

    def test_it_is_thin(self, module: str) -> None:
        """Decisions are in module_utils, where they are tested."""
        tree = ast.parse((PLUGINS / "modules" / (module + ".py")).read_text())
        code = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        lines = sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in code)
        assert lines <= LONGEST_MAIN, "%d lines of code in a module" % lines


def test_no_part_of_a_fragment_is_called_like_another_fragment() -> None:
    """Ansible would take the file for the part: it looks for FILE/PART beside FILE, and finds PART.py."""
    files = {path.stem for path in (PLUGINS / "doc_fragments").glob("*.py")}
    parts = {
        target.id.lower()
        for path in (PLUGINS / "doc_fragments").glob("*.py") for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    }
    assert files & parts == set()


def test_the_plugins_hold_no_assert() -> None:
    found = [
        "%s:%d" % (path.relative_to(PLUGINS), node.lineno)
        for path in PLUGINS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)
    ]
    assert found == []


def docstrings() -> Dict[str, str]:
    """{class: its docstring} of the plugins."""
    return {"%s:%s" % (path.relative_to(PLUGINS).as_posix(), node.name): ast.get_docstring(node, clean=False) or ""
            for path in PLUGINS.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ClassDef)}


def test_a_class_says_what_it_is_before_it_lists_its_fields() -> None:
    assert [name for name, text in docstrings().items() if text.startswith("\n")] == []


def test_what_fields_are_stands_in_one_column() -> None:
    crooked = []
    for name, text in docstrings().items():
        columns = {match.end() for match in map(FIELD.match, text.splitlines()) if match}
        crooked += [name] if len(columns) > 1 else []
    assert crooked == [] and len(docstrings()) > 100
