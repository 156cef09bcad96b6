# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The controller's part of a capability's module: options from variables, libraries, packages by ansible.builtin.

A module that meets a package step returns it as 'awaiting'. The step is carried out here in one transaction of
exact versions by the module of ansible.builtin that its manager names, and the module is called again; it observes anew
and goes on.
"""
from __future__ import annotations

import getpass
import os
import socket
import tempfile
import uuid
from typing import Any, Dict, FrozenSet, List, Mapping, Optional

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.parsing.plugin_docs import read_docstring
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils import shipped
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.plan import part_of
from ..module_utils.core.refusal import Refusal, as_result
from ..module_utils.core.steps import PACKAGE_ENVIRONMENT
from ..module_utils.packages.managers import MANAGERS
from . import following
from .libraries import archive
from .reader_words import in_variables, people_read
from .role_variables import SOURCES, options_given, options_of, options_of_plan, variables_behind

# By what a manager calls them
MODULES = {name: "ansible.legacy." + name for name in ("apt", "dnf", "command")}
MOST_ROUNDS = 20
ENDLESS = {"msg": "%d package transactions in one task, and no end: something on the host undoes them "
                  "(/var/log/apt/history.log, or `dnf history`)" % MOST_ROUNDS}


class CapabilityAction(ActionBase):
    """Base of the action plugins; the task's own module is run."""

    _libraries = ""
    # What the task asks for, with options from variables where it says so
    _options: Dict[str, Any] = {}

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        try:
            self._options = self._given(task_vars)
            return self._run(task_vars)
        except GpuOpsError as error:
            return dict(error.result(), failed=True, changed=False)

    def _given(self, task_vars: Any) -> Dict[str, Any]:
        """The task's options, worked out before the host is asked."""
        given = dict(self._task.args)
        if not boolean(given.pop("from_variables", False)):
            return given
        module = self._module()
        options, misspelt = (options_of(module, given, task_vars, self._templar) if module in SOURCES
                             else options_of_plan(given, task_vars, self._templar))
        for name, near in misspelt:
            Display().warning("Found: variable %s, which nothing reads. Wanted: a variable of the collection. "
                              "Do: see whether %s is meant." % (name, near))
        return options

    def _run(self, task_vars: Any) -> Dict[str, Any]:
        super().run(None, task_vars)
        content, self._libraries = archive()
        arguments = self.for_host()
        if not self._writes():
            return self._rounds(arguments, content, task_vars)
        arguments["run_id"] = run_id()
        with self._followed(arguments, task_vars):
            return self._rounds(arguments, content, task_vars)

    def _followed(self, arguments: Mapping[str, Any], task_vars: Any) -> following.Following:
        """What shows how far the host is, for as long as it is entered; nothing where nobody is to read it."""
        seconds = following.interval(arguments.get("progress_interval"))
        shown = seconds and people_read() and following.is_shown(self._task)
        return following.Following(
            str(task_vars.get("inventory_hostname")), arguments["run_id"], seconds,
            following.asking(self) if shown else None, following.on_screen)

    def _rounds(self, arguments: Dict[str, Any], content: bytes, task_vars: Any) -> Dict[str, Any]:
        """The module, and package steps in between, until it is done."""
        rounds: List[Dict[str, Any]] = []
        is_shipped = False
        try:
            while len(rounds) < MOST_ROUNDS:
                result = self._call(arguments, task_vars)
                if result.get("libraries_missing") and not is_shipped:
                    self._libraries = self._ship(content, os.path.basename(self._libraries))
                    is_shipped = True
                    continue
                rounds.append(result)
                if result.get("failed") or "awaiting" not in result:
                    break
                step = result["awaiting"]
                transaction = self._transaction(step, task_vars)
                arguments["resumed_step"] = step["id"]
                if transaction.get("failed"):
                    rounds.append(_failed_transaction(step, transaction, self._account(arguments, task_vars)))
                    break
            else:
                accounted = self._account(arguments, task_vars)
                rounds.append(_failed_transaction(rounds[-1]["awaiting"], ENDLESS, accounted))
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return self._in_words_of_reader(_summary(rounds))

    def _in_words_of_reader(self, result: Dict[str, Any]) -> Dict[str, Any]:
        """The result, in whose refusals the variables stand that options came from."""
        if not result.get("refusals") or not boolean(self._task.args.get("from_variables", False)):
            return result
        module, given = self._module(), self._task.args
        if module in SOURCES:
            return in_variables(result, variables_behind({module: given}), SOURCES[module].capability, given)
        behind = variables_behind({name: options_given(given, name) for name in SOURCES})
        return in_variables(result, behind, given=given)

    def for_host(self) -> Dict[str, Any]:
        """The options that the module on the host gets; a subclass leaves out what only the controller needs."""
        arguments = dict(self._options)
        if self._module() in SOURCES and isinstance(arguments.get("approved_plan"), dict):
            arguments["approved_plan"] = part_of(arguments["approved_plan"], SOURCES[self._module()].capability)
        return arguments

    def _ship(self, content: bytes, name: str) -> str:
        """Put the archive on the host, for this task; the module itself keeps it where it changes the host."""
        with tempfile.NamedTemporaryFile(suffix=".zip") as local:
            local.write(content)
            local.flush()
            if not self._connection._shell.tmpdir:
                self._make_tmp_path()
            passing = str(self._connection._shell.join_path(self._connection._shell.tmpdir, name))
            self._transfer_file(local.name, passing)
        self._fixup_perms2((self._connection._shell.tmpdir, passing))
        return passing

    def _module(self) -> str:
        return str(self._task.action).rsplit(".", 1)[-1]

    def _writes(self) -> bool:
        return self._module() not in ("gpu_health", "gpu_info", "gpu_plan", "gpu_validation")

    def _account(self, arguments: Mapping[str, Any], task_vars: Any) -> Dict[str, Any]:
        """Have the host account for what came although the transaction failed; the module's result."""
        return self._call(dict(arguments, transaction_failed=True), task_vars)

    def _transaction(self, step: Mapping[str, Any], task_vars: Any) -> Dict[str, Any]:
        """Install or remove the step's packages in one transaction."""
        manager = MANAGERS[str(step["parameters"].get("manager", "apt"))]
        module = MODULES[manager.builtin_module(step)]
        options = manager.builtin_options(step, known_options(self._shared_loader_obj.module_loader, module))
        return self._in_environment(PACKAGE_ENVIRONMENT, module, options or {}, task_vars)

    def _call(self, arguments: Mapping[str, Any], task_vars: Any) -> Dict[str, Any]:
        """The task's own module, with the archive that it takes its code from."""
        return self._in_environment({shipped.VARIABLE: self._libraries}, self._task.action, arguments, task_vars)

    def _in_environment(
        self, variables: Mapping[str, str], module: str, arguments: Mapping[str, Any], task_vars: Any
    ) -> Dict[str, Any]:
        environment = self._task.environment
        self._task.environment = [*(environment or []), dict(variables)]
        try:
            return self._execute_module(module_name=module, module_args=dict(arguments), task_vars=task_vars)
        finally:
            self._task.environment = environment


def run_id() -> str:
    """'user@controller' and what no other run has: the host's lock is this task's through all its rounds."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "uid %d" % os.getuid()
    return "%s@%s %s" % (user, socket.gethostname(), uuid.uuid4().hex)


def known_options(module_loader: Any, module: str = MODULES["apt"]) -> Optional[FrozenSet[str]]:
    """Options of the package module that this ansible-core would run, from its own documentation, None without one."""
    path = module_loader.find_plugin(module, ".py")
    told = read_docstring(path, verbose=False)["doc"] if path else None
    return frozenset(told["options"]) if told and told.get("options") else None


def _failed_transaction(
    step: Mapping[str, Any], transaction: Mapping[str, Any], accounted: Mapping[str, Any]
) -> Dict[str, Any]:
    """The package manager's refusal in the collection's own form; accounted is what the module then said."""
    at_work, why = accounted.get("left_at_work"), accounted.get("why_failed")
    unaccounted = str(accounted.get("msg", "")) if accounted.get("failed") else ""
    refusal = Refusal(
        "packages.transaction_failed",
        str(transaction.get("msg", "the package manager failed")).strip() + (
            "; a package manager is at work: %s" % at_work if at_work else "; %s" % why if why else ""),
        "step %s" % step["id"],
        "read `stdout` and `stderr` of this result; the step is repeated by the next run")
    return {
        **as_result([refusal]),
        "failed": True,
        "changed": True,
        "failed_step": dict(step),
        "stdout": transaction.get("stdout", ""),
        "stderr": transaction.get("stderr", ""),
        **({"unaccounted": unaccounted} if unaccounted else {}),
    }


def _summary(rounds: List[Dict[str, Any]]) -> Dict[str, Any]:
    """One result of all rounds: the first round's plan and diff, every round's steps, the last round's end."""
    result = dict(rounds[-1])
    if "applied" in rounds[0]:
        for key in ("plan", "text", "diff", "returns_to"):
            if key in rounds[0]:
                result[key] = rounds[0][key]
        result["applied"] = [step for each in rounds for step in each.get("applied", [])]
        result["changed"] = any(each.get("changed") for each in rounds)
    result.pop("awaiting", None)
    return result
