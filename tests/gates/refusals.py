# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every refusal of the collection, read from its code, and the page that lists them: docs/refusals.md.

A refusal's code is a literal where it is made, so that the page, a search for the code and the code itself agree.
What else it says is shown as far as it is written there; values of a host are shown as dots. Tasks of roles and
playbooks, whose results have only a message, end it with the code in brackets.
"""
from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, Mapping, Sequence

import yaml
from workspace import REPOSITORY

PLUGINS = REPOSITORY / "plugins"
PAGE = "docs/refusals.md"
PARTS = ("code", "found", "wanted", "remedy", "option")
# The one form of a refusal, and the error that carries it; errors derived from that are found in the code. And what
# ends a module where neither can be imported (shipped.py)
ROOTS = {"Refusal": PARTS, "GpuOpsError": PARTS, "_fail": PARTS}
# A task's message; one that shows a refusal of the host's has found and code from there
OF_TASK = re.compile(r"Found: (?P<found>.+?)\. Wanted: (?P<wanted>.+?)\. Do: (?P<remedy>.+?)\."
                     r"(?: \[(?P<code>[^\]]+)\])?", re.DOTALL)
OF_ANOTHER = re.compile(r"\{\{ [\w.]*refusal\.")
TEMPLATED = re.compile(r"(?:\{\{.*?\}\}|\{%.*?%\})+", re.DOTALL)
# They make refusals of refusals
OF_THE_FORM = ("module_utils/core/refusal.py", "module_utils/core/errors.py")
VALUE = "…"
PLACEHOLDER = re.compile(r"%(?:%|[-+ #0]*\d*(?:\.\d+)?[sdrfx])|\{(?:path|tried|reason|mount)\}")
HEAD = """# Refusals

Whatever the collection does not do, or cannot finish, it says in one form: what was found, what was wanted, what to do,
and a code that stays the same from release to release. A failed task has all of it in its result: `code`, `found`,
`wanted`, `remedy`, `option` (the option, or the role's variable, that the remedy is about) and, where there are several
reasons, all of them in `refusals`. The refusals of a plan are in `plan.refusals` in the same form. What tasks of roles
and playbooks refuse themselves is a message that ends with the code in brackets.

```yaml
- name: Install the driver
  gpuops.nvidia.gpu_driver:
    source: nvidia_repository
    version: 580.178.04
  register: installed
  failed_when: installed is failed and installed.code != 'driver.version_not_offered'
```

The first word of a code is a capability, or what several of them share. Dots stand for values of a host. This page is
made from the code of the collection.
"""


@dataclass(frozen=True)
class Site:
    """A place that makes a refusal. code: '' where the code is no literal; the other parts are patterns, see pattern().

    path: relative to plugins/, or to the repository for tasks.
    """

    path: str
    line: int
    code: str
    found: str
    wanted: str
    remedy: str
    option: str


@functools.lru_cache(maxsize=None)
def sites() -> Sequence[Site]:
    """Every place that makes a refusal."""
    sources = {path.relative_to(PLUGINS).as_posix(): ast.parse(path.read_text()) for path in _sources()}
    carriers = _carriers(sources.values())
    return (*(site for name, tree in sources.items() for site in _sites(name, tree, carriers)), *_of_tasks())


def _of_tasks() -> Iterator[Site]:
    """Those of the tasks of roles and playbooks."""
    for path in sorted(path for kind in ("roles", "playbooks") for path in (REPOSITORY / kind).rglob("*.yml")):
        for message in _messages(yaml.safe_load(path.read_text())):
            told = OF_TASK.fullmatch(" ".join(message.split()))
            if OF_ANOTHER.search(message):
                continue
            parts = {name: TEMPLATED.sub(VALUE, text or "") for name, text in told.groupdict().items()} if told else {}
            yield Site(path.relative_to(REPOSITORY).as_posix(), 0, **{**dict.fromkeys(PARTS, ""), **parts})


def _messages(node: object) -> Iterator[str]:
    """Messages in the form of refusals, wherever in a file."""
    if isinstance(node, list):
        for each in node:
            yield from _messages(each)
    elif isinstance(node, dict):
        for name, each in node.items():
            if name in ("msg", "fail_msg") and isinstance(each, str) and "Found: " in each:
                yield each
            yield from _messages(each)


def page() -> str:
    """The page: a heading a code."""
    lines = [HEAD]
    area = ""
    for site in sorted((site for site in sites() if site.code), key=lambda site: site.code):
        if site.code.split(".")[0] != area:
            area = site.code.split(".")[0]
            lines += ["## %s" % area, ""]
        lines += ["### %s" % site.code, "", "- Found: %s" % _shown(site.found), "- Wanted: %s" % _shown(site.wanted),
                  "- Do: %s" % _shown(site.remedy)]
        if site.option and VALUE not in site.option:
            lines += ["- Option: `%s`" % site.option.replace(" / ", "` / `")]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def pattern(node: ast.expr, constants: Mapping[str, ast.expr]) -> str:
    """What an expression is as a text, as far as it is written down; the rest as dots.

    constants: {name: expression} of what stands for one expression only.
    """
    if isinstance(node, ast.Constant):
        return PLACEHOLDER.sub(VALUE, node.value) if isinstance(node.value, str) else str(node.value)
    if isinstance(node, ast.Name) and node.id in constants:
        others = {name: value for name, value in constants.items() if name != node.id}
        return pattern(constants[node.id], others)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return pattern(node.left, constants)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return pattern(node.left, constants) + pattern(node.right, constants)
    if isinstance(node, ast.IfExp):
        told = [text for text in (pattern(node.body, constants), pattern(node.orelse, constants)) if text]
        return told[0] if len(set(told)) == 1 else " / ".join(told)
    return VALUE


def _sources() -> Iterator[Path]:
    return (path for path in sorted(PLUGINS.rglob("*.py")) if path.stem != "__init__")


def _carriers(trees: Iterable[ast.Module]) -> Dict[str, Sequence[str]]:
    """{name: parameters} of the classes that are, or carry, a refusal."""
    carriers: Dict[str, Sequence[str]] = dict(ROOTS)
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while True:
        derived = {node.name: _parameters(node) or carriers[base.id] for node in classes for base in node.bases
                   if isinstance(base, ast.Name) and base.id in carriers and node.name not in carriers}
        if not derived:
            return carriers
        carriers.update(derived)


def _parameters(defined: ast.ClassDef) -> Sequence[str]:
    """Of its own __init__, without self; none where it has none."""
    for node in defined.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return [argument.arg for argument in node.args.args[1:]]
    return ()


def _sites(name: str, tree: ast.Module, carriers: Mapping[str, Sequence[str]]) -> Iterator[Site]:
    constants = {target.id: node.value for node in tree.body if isinstance(node, ast.Assign)
                 for target in node.targets if isinstance(target, ast.Name)}
    inside = {id(node): defined.name for defined in tree.body
              if isinstance(defined, ast.ClassDef) and defined.name in carriers for node in ast.walk(defined)}
    own: Dict[int, Dict[str, ast.expr]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            own.update(dict.fromkeys(map(id, ast.walk(function)), _assigned(function)))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "id", "")
        parameters: Sequence[str] = carriers.get(called, ())
        if id(node) in inside and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__":
            parameters = PARTS
        given: Dict[str, ast.expr] = dict(zip(parameters, node.args))
        given.update({word.arg: word.value for word in node.keywords if word.arg in PARTS})
        if "code" not in parameters or name in OF_THE_FORM and not isinstance(given.get("code"), ast.Constant):
            continue
        known = {**constants, **own.get(id(node), {})}
        parts = {part: pattern(given[part], known) if part in given else "" for part in PARTS}
        if parts["code"] == VALUE and id(node) in inside:
            continue
        literal = isinstance(given.get("code"), ast.Constant)
        yield Site(name, node.lineno, **dict(parts, code=parts["code"] if literal else ""))


def _assigned(function: ast.FunctionDef) -> Dict[str, ast.expr]:
    """{name: expression} of what a function assigns once."""
    given = [(node.targets[0].id, node.value) for node in ast.walk(function)
             if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    names = [name for name, _value in given]
    return {name: value for name, value in given if names.count(name) == 1}


def _shown(text: str) -> str:
    return text.replace("<", "\\<")
