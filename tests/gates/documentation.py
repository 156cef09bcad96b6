# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is documented in many places, made from the one that declares it.

What roles have from modules (role_files.py), what Ansible wants beside a module (module_files.py), tables of variables
in the roles' READMEs and in docs/variables.md, the keys that results of modules share, the page of all refusals
(refusals.py), the alerts on the page about monitoring (monitoring_page.py), the page on charts (charts_page.py), and
the least roles of the playbooks in a cluster (rights_pages.py).
`python tests/gates/documentation.py` writes them. A unit test compares them with what would be written.
"""
from __future__ import annotations

import functools
import re
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence

import charts_page
import module_files
import monitoring_page
import refusals
import rights_pages
import role_files
import yaml
from role_files import documentation_blocks
from workspace import REPOSITORY

ROLES = REPOSITORY / "roles"
VARIABLES = REPOSITORY / "docs" / "variables.yml"
RESULTS = REPOSITORY / "docs" / "results.yml"
MODULES = REPOSITORY / "plugins" / "modules"
PAGE = "docs/variables.md"
BEGIN = "<!-- Made from meta/argument_specs.yml by tests/gates/documentation.py -->"
END = "<!-- End of what is made -->"
# Ansible's markup of names, values and code
MARKUP = re.compile(r"\b[BCEIMOPV]\(([^)]*)\)")
FOLLOWS = re.compile(r"(\w+) \| default\((.*?)(?:, true)?\)")
LONGEST_DEFAULT = 120
# How that of a new role begins
README = "# gpuops.nvidia.%s\n\n%s.\n\n%s\n%s\n"
RETURN_END = '"""\n'
FROM_RESULTS = "# From docs/results.yml"
WRITERS = module_files.writers()
# docs.ansible.com, "Return Values", and what the task and its output plugin add
OF_ANSIBLE = {
    "action", "ansible_facts", "ansible_loop_var", "attempts", "changed", "changed_when_result", "cmd", "deprecations",
    "diff", "exception", "failed", "failed_when_result", "false_condition", "invocation", "item", "msg", "rc",
    "results", "skip_reason", "skipped", "stderr", "stderr_lines", "stdout", "stdout_lines", "unreachable",
    "warnings",
}
PLANNER = "gpu_plan"
READERS = ("gpu_info", PLANNER, "gpu_validation")
# They say what other tasks have found
TELLERS = ("gpu_fleet_plan", "gpu_fleet_progress")
# Of the modules that serve the clusters of a play in one task: the keys of each cluster, beside those of every one
OF_A_CLUSTER = {
    **dict.fromkeys(("node_feature_discovery", "gpu_feature_discovery", "device_plugin", "dcgm_exporter",
                     "gpu_components"), ("planned",)),
    "gpu_monitoring": ("planned", "files"),
    "gpu_manifests": ("files", "images"),
}
# As deep as the keys of a cluster are in its list
CONTAINED = 4 * " "

Options = Mapping[str, Mapping[str, Any]]


def load(path: Path) -> Dict[str, Any]:
    return (yaml.safe_load(path.read_text()) or {}) if path.is_file() else {}


def roles() -> List[str]:
    return sorted({*role_files.texts(), *(path.parent.parent.name for path in ROLES.glob("*/meta/argument_specs.yml"))})


def entry_points(role: str) -> Dict[str, Dict[str, Any]]:
    if role in role_files.texts():
        return role_files.entry_points(role)
    return dict(load(ROLES / role / "meta" / "argument_specs.yml")["argument_specs"])


def options(role: str) -> Dict[str, Dict[str, Any]]:
    """Every option of every entry point of a role, in the order of the file."""
    merged: Dict[str, Dict[str, Any]] = {}
    for point in entry_points(role).values():
        for name, option in (point.get("options") or {}).items():
            merged.setdefault(name, option)
    return merged


def declared() -> Dict[str, Dict[str, Any]]:
    """The variables of the playbooks, which no single role owns."""
    return {name: option for group in load(VARIABLES).values() for name, option in group["variables"].items()}


@functools.lru_cache(maxsize=None)
def returned(module: str) -> Dict[str, Any]:
    """What a module's RETURN says of its result."""
    return dict(documentation_blocks(MODULES / (module + ".py"))["RETURN"])


def example(page: str, words: str) -> Any:
    """The first YAML on a page of docs/ in which these words are."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (REPOSITORY / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    return yaml.safe_load(next(block for block in blocks if words in block))


def undocumented(result: Mapping[str, Any], documented: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Keys of a result that RETURN does not name, as deep as it names any."""
    for key, value in result.items():
        of_ansible = not where and (key.startswith("_ansible") or key in OF_ANSIBLE)
        if key not in documented:
            if not of_ansible:
                yield where + key
            continue
        inside = documented[key].get("contains")
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if inside and isinstance(each, Mapping):
                yield from undocumented(each, inside, "%s%s." % (where, key))


def pages() -> Dict[str, str]:
    """{path in the repository: text} of every page that is made, in whole or in part."""
    made = {name: text for role in role_files.texts() for name, text in role_files.files(role).items()}
    made.update({"roles/%s/README.md" % role: readme(role) for role in roles()})
    made.update(module_files.files())
    made[PAGE] = variables_page()
    made[refusals.PAGE] = refusals.page()
    made.update(rights_pages.files())
    made[monitoring_page.PAGE] = monitoring_page.page()
    made[charts_page.PAGE] = charts_page.page()
    made.update({"plugins/modules/%s.py" % path.stem: module(path) for path in sorted(MODULES.glob("*.py"))})
    return made


def description(role: str) -> str:
    if role in role_files.texts():
        return str(role_files.texts()[role]["description"])
    return str(load(ROLES / role / "meta" / "main.yml")["galaxy_info"]["description"])


def readme(role: str) -> str:
    """The role's README with its tables as its specification has them; what stands around them is kept."""
    path = ROLES / role / "README.md"
    text = path.read_text() if path.is_file() else README % (role, description(role), BEGIN, END)
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit("%s needs one line %r and one line %r: the tables go between them" % (path, BEGIN, END))
    before, rest = text.split(BEGIN)
    return before + "\n".join([BEGIN, "", *_role_tables(role), "", END]) + rest.split(END)[1]


def _role_tables(role: str) -> List[str]:
    points = entry_points(role)
    defaults = {} if role in role_files.texts() else load(ROLES / role / "defaults" / "main.yml")
    lines: List[str] = []
    if len(points) > 1:
        rows = [["`%s`" % name, _sentences(point.get("description") or [])] for name, point in points.items()]
        lines += [*_table(["Entry point", "Does"], rows), ""]
    with_defaults = {name: dict(option, default=defaults.get(name, option.get("default")))
                     for name, option in options(role).items()}
    if role in role_files.texts():
        with_defaults = {name: dict(option, description=option["description"][:1])
                         for name, option in with_defaults.items()}
    return lines + _options_table(with_defaults)


def module(path: Path) -> str:
    """The module with the keys that its result shares with others at the end of its RETURN."""
    text = module_files.planner(path.read_text()) if path.stem == PLANNER else path.read_text()
    start = text.index('RETURN = r"""')
    end = text.index(RETURN_END, start + len('RETURN = r"""'))
    own = text[start:end].split(FROM_RESULTS)[0]
    return text[:start] + own + "%s\n%s" % (FROM_RESULTS, shared_results(path.stem)) + text[end:]


def shared_results(name: str) -> str:
    results = load(RESULTS)
    failure = results["failure"] + ("" if name == PLANNER else results["refusals"])
    if name in WRITERS:
        return str(results["writer"] + results["host"] + failure)
    served = "".join([results["clusters"], *(textwrap.indent(results[each], CONTAINED) for each in OF_A_CLUSTER[name]),
                      results["text"]]) if name in OF_A_CLUSTER else ""
    asked = "" if name in TELLERS else results["host" if name in READERS else "cluster"]
    return str(served + asked + failure)


def variables_page() -> str:
    """The page with the variables of the playbooks, and where those of the roles are."""
    users = used_in(declared())
    lines = [
        "# Variables",
        "",
        "Set them in the inventory, or with `--extra-vars`. A host, or a group of hosts, may have its own values.",
        "This page is made from [variables.yml](variables.yml) and the roles' argument specifications.",
    ]
    for group in load(VARIABLES).values():
        rows = [[*_option_row(name, option), users[name]] for name, option in group["variables"].items()]
        lines += ["", "## %s" % group["title"], "",
                  *_table(["Variable", "Type", "Default", "Meaning", "Used in"], rows)]
    rows = []
    for role in roles():
        rows.append(["[%s](../roles/%s/README.md)" % (role, role), "`%s_*`" % role, description(role)])
    lines += ["", "## Roles", "",
              "Each role has its own variables, which carry its name. A task of a module with `from_variables: true`",
              "takes them without the role.", ""]
    return "\n".join([*lines, *_table(["Role", "Variables", "Does"], rows)]) + "\n"


def used_in(names: Iterable[str]) -> Dict[str, str]:
    """{variable: the playbooks and roles whose files name it}."""
    sources = {"`%s`" % path.stem: _with_variables(path) for path in sorted((REPOSITORY / "playbooks").glob("*.yml"))}
    shared = "\n".join(path.read_text() for path in sorted((REPOSITORY / "playbooks" / "tasks").glob("*.yml")))
    every_role = {"role `%s`" % role: _code(role) for role in roles()}
    users = {}
    for name in names:
        word = re.compile(r"\b%s\b" % name)
        found = [who for who, text in {**sources, **every_role}.items() if word.search(text)]
        if word.search(shared) and not any(who in sources for who in found):
            found.insert(0, "playbooks")
        users[name] = ", ".join(found) if len(found) < 6 else _many(found)
    return users


def _with_variables(playbook: Path) -> str:
    """The text of a playbook; of site with the variables that all of them have, as most are of what it decides."""
    variables = (playbook.parent / "roles" / "gpu" / "vars" / "main.yml",) if playbook.stem == "site" else ()
    return "\n".join(path.read_text() for path in (playbook, *variables))


def _many(found: Sequence[str]) -> str:
    books = [who for who in found if not who.startswith("role")]
    return ", ".join([*books, "%d roles" % (len(found) - len(books))])


def _code(role: str) -> str:
    """What a role runs: of what is made the text that will be there."""
    kinds = ("defaults", "tasks", "templates", "vars")
    found = {path.relative_to(REPOSITORY).as_posix(): path.read_text()
             for kind in kinds for path in (ROLES / role / kind).glob("*")}
    made = role_files.files(role) if role in role_files.texts() else {}
    found.update({name: text for name, text in made.items() if name.split("/")[2] in kinds})
    return "\n".join(found.values())


def _options_table(found: Options) -> List[str]:
    return _table(["Variable", "Type", "Default", "Meaning"], [_option_row(name, found[name]) for name in found])


def _option_row(name: str, option: Mapping[str, Any]) -> List[str]:
    kind = str(option.get("type", "str"))
    if option.get("elements"):
        kind = "%s of %s" % (kind, option["elements"])
    meaning = _sentences(option["description"])
    if option.get("choices"):
        meaning += " One of %s." % ", ".join("`%s`" % choice for choice in option["choices"])
    return ["`%s`" % name, kind, _default(option), meaning]


def _default(option: Mapping[str, Any]) -> str:
    if option.get("required"):
        return "required"
    value = option.get("default")
    if value is None:
        return "undefined"
    if str(value).strip().startswith("{{") and FOLLOWS.fullmatch(str(value).strip("{} ")):
        return _follows(str(value).strip("{} "))
    if value == "":
        return "empty"
    if value == "{{ omit }}":
        return "undefined"
    if isinstance(value, str):
        text = value.strip("{} ") if value.startswith("{{") and "|" not in value else value
    else:
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10000).split("\n...")[0].strip()
    return "`%s`" % text if len(text) <= LONGEST_DEFAULT and "\n" not in text else "see `defaults/main.yml`"


def _follows(expression: str) -> str:
    """Variables in the order in which the first defined one counts, then what counts without them."""
    follows = FOLLOWS.fullmatch(expression)
    if follows:
        return "`%s`, else %s" % (follows.group(1), _follows(follows.group(2)))
    if expression == "omit":
        return "undefined"
    fallback = yaml.safe_load(expression)
    return "empty" if fallback == "" else "`%s`" % fallback


def _sentences(description: Any) -> str:
    parts = [description] if isinstance(description, str) else list(description)
    return MARKUP.sub(r"`\1`", " ".join(" ".join(part.split()) for part in parts))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> List[str]:
    lines = ["| %s |" % " | ".join(heads), "|%s" % ("---|" * len(heads))]
    return lines + ["| %s |" % " | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]


def main() -> None:
    for name, text in pages().items():
        path = REPOSITORY / name
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print("written: %s" % name)


if __name__ == "__main__":
    main()
