# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every variable of playbooks and roles: declared in one place, documented from there, used, and of one default."""
from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

import documentation
import pytest
import role_files
import yaml
from workspace import REPOSITORY, source_files

from ansible_collections.gpuops.nvidia.plugins.action import gpu_rollout
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import CAPABILITIES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.clusters import VARIABLES as CONNECTION
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import OF_WRITERS, SOURCES

PLAYBOOKS = REPOSITORY / "playbooks"
ROLES = documentation.roles()
DECLARED = documentation.declared()
PAGES = documentation.pages()
OF_ROLLOUT = {gpu_rollout.DOMAIN, *(gpu_rollout.PREFIX + option for option in gpu_rollout.OF_CLUSTER)}
WORD = re.compile(r"\b_*gpu_[a-z0-9_]+\b")
NAMED = re.compile(r"(?<!k8s_)\b(gpu_[a-z0-9_]*[a-z0-9])\b(?!\.(?:yml|md|py))")
DEFAULTED = re.compile(r"\b(gpu_\w+)\s*\|\s*default\(")
# Comments, and names of YAML anchors
COMMENT = re.compile(r"(^|\s)#.*$|(?<=\s)[&*]\w+", re.MULTILINE)
# What a task file holds beside variables: names of modules, groups and facts
PLUGINS = {path.stem for directory in ("modules", "action", "filter", "inventory")
           for path in (REPOSITORY / "plugins" / directory).glob("*.py")}


def files(*directories: Path) -> Iterator[Tuple[Path, str]]:
    """Playbooks, tasks, templates and variables, without comments and anchors."""
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            inside = path.relative_to(REPOSITORY).parts
            code = inside[0] == "playbooks" or {"defaults", "tasks", "templates", "vars"}.intersection(inside[2:3])
            if code and path.is_file():
                yield path, COMMENT.sub("", path.read_text())


def made_by(data: Any) -> Set[str]:
    """Names that tasks bring about themselves: keys of vars and facts, registered results, groups."""
    if isinstance(data, list):
        return {name for item in data for name in made_by(item)}
    if not isinstance(data, dict):
        return set()
    names = {str(data[key]) for key in ("register", "loop_var", "key") if key in data}
    hosts = data.get("hosts", [])
    names.update(name for pattern in (hosts if isinstance(hosts, list) else [hosts])
                 for name in re.findall(r"&(gpu_\w+)", str(pattern)))
    for key, value in data.items():
        names |= {str(key)} | made_by(value)
    return names


def made(*directories: Path) -> Set[str]:
    return {name for path, text in files(*directories) if path.suffix == ".yml"
            for name in made_by(yaml.safe_load(text))}


def options_of_modules() -> Dict[str, Dict[str, Any]]:
    """{capability: the argument specification of its module}."""
    return {capability.name: dict(capability.arguments) for capability in CAPABILITIES}


def baselines() -> List[Dict[str, Any]]:
    """Parameters with which every capability's defaults are accepted."""
    mirror = {"repository_url": "https://mirror/", "repository_key": "/etc/mirror.asc"}
    installer = {"version": "580.178.04", "runfile_checksum": "0" * 64}
    return [{"version": "580"}, {"version": "580", **mirror}, {"version": "1.20.1"}, installer, {}]


def accepted(capability: Any, choice: Dict[str, Any]) -> bool:
    for baseline in baselines():
        given = {name: option.get("default") for name, option in capability.arguments.items()}
        given.update({name: value for name, value in {**baseline, **choice}.items() if name in given})
        try:
            capability.policy_of(given)
        except GpuOpsError:
            continue
        return True
    return False


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_tables_are_those_of_the_specifications(page: str) -> None:
    """`python tests/gates/documentation.py` writes them anew."""
    assert (REPOSITORY / page).read_text() == PAGES[page]


def test_every_variable_of_the_playbooks_is_declared_or_made_there() -> None:
    known = {*DECLARED, *PLUGINS, *ROLES, *made(PLAYBOOKS, REPOSITORY / "roles"), *Disruption.names()}
    for role in ROLES:
        known.update(documentation.options(role))
    strays = {(str(path.relative_to(REPOSITORY)), name) for path, text in files(PLAYBOOKS, REPOSITORY / "roles")
              for name in WORD.findall(text) if name not in known and not name.endswith("_")}
    assert strays == set()


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_of_a_role_is_specified_or_made_there(role: str) -> None:
    home = REPOSITORY / "roles" / role
    known = {*documentation.options(role), *made(home)}
    own = re.compile(r"\b_*%s_[a-z0-9_]+\b" % role)
    others = tuple(each for each in ROLES if each.startswith(role + "_"))
    strays = {name for path, text in files(home) for name in own.findall(text)
              if name not in known and name not in PLUGINS and not name.startswith(others)}
    assert strays == set()


@pytest.mark.parametrize("role", ROLES)
def test_every_specified_option_is_used_by_its_role(role: str) -> None:
    home = REPOSITORY / "roles" / role
    used = "\n".join(text for path, text in files(home) if path.parts[-2] != "defaults")
    of_modules = {source.variable(option, documentation.options(role).keys())
                  for module, source in role_files.sources().items()
                  if source.role == role and "gpuops.nvidia.%s:" % module in used
                  for option in (*source.options, *OF_WRITERS)}
    assert [name for name in documentation.options(role)
            if name not in of_modules and not re.search(r"\b%s\b" % name, used)] == []


def module_tasks(data: Any) -> Iterator[Tuple[str, Any]]:
    """(module, options) of the tasks with a module that has options from variables, those in blocks too."""
    if isinstance(data, list):
        for each in data:
            yield from module_tasks(each)
    elif isinstance(data, dict):
        for name, each in data.items():
            if str(name).rpartition("gpuops.nvidia.")[2] in role_files.sources():
                yield str(name).rpartition(".")[2], each
            elif name in ("block", "rescue", "always"):
                yield from module_tasks(each)


def test_a_role_gives_its_variables_to_its_modules() -> None:
    """Without the word they would be checked, documented, and read by nobody. What only takes away needs none."""
    tasks = [(path.relative_to(REPOSITORY).as_posix(), module, options) for path, text in files(REPOSITORY / "roles")
             if "tasks" in path.parts for module, options in module_tasks(yaml.safe_load(text))]
    assert len(tasks) > 10 and [(path, module) for path, module, options in tasks
                                if options.get("from_variables") is not True and options != {"state": "absent"}] == []


def test_every_declared_variable_is_described_and_used() -> None:
    text = "\n".join(text for _path, text in files(PLAYBOOKS, REPOSITORY / "roles"))
    assert [name for name, option in DECLARED.items() if not (option.get("description") and option.get("type"))] == []
    by_plugins = {*CONNECTION, *OF_ROLLOUT}
    assert [name for name in DECLARED if not re.search(r"\b%s\b" % name, text) and name not in by_plugins] == []


def test_every_variable_that_a_plugin_reads_is_declared() -> None:
    assert {*CONNECTION, *OF_ROLLOUT} <= set(DECLARED)


@pytest.mark.parametrize("page", sorted(path for path in source_files() if path.endswith(".md")))
def test_a_variable_that_a_page_names_is_there(page: str) -> None:
    options = {name for role in ROLES for name in documentation.options(role)}
    options.update(name for source in SOURCES.values() for option in source.options.values()
                   for name in option.get("options") or ())
    known = {*DECLARED, *PLUGINS, *ROLES, *options, *made(PLAYBOOKS, REPOSITORY / "roles"), *Disruption.names()}
    named = NAMED.findall((REPOSITORY / page).read_text())
    assert sorted(set(named) - known) == []


def test_a_variable_has_one_default() -> None:
    differing = []
    for path, text in files(PLAYBOOKS, REPOSITORY / "roles"):
        for match in DEFAULTED.finditer(text):
            name, value = match.group(1), literal(text[match.end():])
            if name in DECLARED and value not in ("omit", "skipped") and "default" in DECLARED[name]:
                if value not in (DECLARED[name]["default"], str(DECLARED[name]["default"]).strip("{} ")):
                    differing.append((str(path.relative_to(REPOSITORY)), name, value))
    assert differing == []


def literal(text: str) -> Any:
    """The first argument of default( as Python reads it; a name as itself, another expression as 'skipped'."""
    for end in (position for position, sign in enumerate(text) if sign in "),"):
        try:
            return ast.literal_eval(" ".join(text[:end].split()).replace("true", "True").replace("false", "False"))
        except (SyntaxError, ValueError):
            if text[:end].isidentifier():
                return text[:end]
    return "skipped"


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda capability: capability.name)
def test_a_choice_that_is_always_refused_says_so(capability: Any) -> None:
    silent = []
    for option, specification in capability.arguments.items():
        for choice in specification.get("choices", ()):
            if not accepted(capability, {option: choice}):
                told = "V(%s) is always refused" % choice
                silent += [str(path) for path in describing(capability.name, option) if told not in path.read_text()]
    assert accepted(capability, {}) and silent == []


def describing(capability: str, option: str) -> List[Path]:
    """The files that describe an option of a capability: its module's, and the specifications of roles that set it."""
    module = next(name for name, source in SOURCES.items() if source.capability == capability)
    found = [REPOSITORY / "plugins" / "modules" / (module + ".py")]
    for role in ROLES:
        if "%s_%s" % (role, option) in documentation.options(role) and role == module:
            found.append(REPOSITORY / "roles" / role / "meta" / "argument_specs.yml")
    return found


@pytest.mark.parametrize("role, capability", [
    (source.role, source.capability) for module, source in SOURCES.items()
    if module == source.role and source.capability in options_of_modules()])
def test_a_role_offers_the_choices_of_its_module(role: str, capability: str) -> None:
    offered = options_of_modules()[capability]
    specified = documentation.options(role)
    for name in offered.keys() - set(role_files.texts()[role].get("without", ())):
        option = offered[name]
        own = specified["%s_%s" % (role, name)]
        assert set(own.get("choices", ())) == set(option.get("choices", ())), name
        assert own.get("type", "str") == option.get("type", "str"), name
        assert own.get("elements") == option.get("elements"), name
