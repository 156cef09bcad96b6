# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The whole of a module that talks to the Kubernetes API: it runs where Ansible runs, and no host is asked.

No connection is made, and nothing of `become`, `delegate_to` or the host's interpreter counts. Options fall back to the
K8S_AUTH_* variables, and what a task's `environment` says counts as it does for a module.
"""
from __future__ import annotations

import contextlib
import json
import os
from typing import Any, ClassVar, Dict, Iterator, Mapping, Optional, Tuple

from ansible.module_utils.basic import env_fallback
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ..module_utils.cluster.client import Client, Connection, auth_argument_spec, secrets
from ..module_utils.core.errors import GpuOpsError
from .clusters import connection
from .many_hosts import Clients, failed
from .role_variables import worked_out

FROM_VARIABLES = "from_variables"


class ClusterAction(ActionBase):
    """Base of the action plugins. A subclass has the module's options, and its work."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {}
    _requires_connection = False

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        """The result's keys; 'warnings' are shown. Raises GpuOpsError."""
        raise NotImplementedError

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        super().run(None, task_vars)
        with environment(environment_of(self)):
            try:
                result = self.answer(task_vars)
            except GpuOpsError as error:
                result = failed(self._in_words(error))
        for note in result.pop("warnings", ()):
            Display().warning(note)
        if not self._task.diff:
            result.pop("diff", None)
        return result

    def answer(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        """The task's result, of the one cluster that it is about unless a subclass asks others. Raises GpuOpsError."""
        return self.ask(self._given(task_vars))

    def ask(self, given: Mapping[str, Any], clients: Optional[Clients] = None) -> Dict[str, Any]:
        """What a cluster makes of these options, without the secrets that are among them. Raises GpuOpsError."""
        options = checked(given, self.ARGUMENTS, self._name())
        access = Connection.from_options(options)
        try:
            result = self.work((clients or Clients()).to(access), options, bool(self._task.check_mode))
        except GpuOpsError as error:
            result = failed(self._in_words(error))
        told: Dict[str, Any] = remove_values(result, secrets(access))
        return told

    def _given(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        """The task's options, and the connection that the host's variables name where the task wants those."""
        given = dict(self._task.args)
        if not boolean(given.pop(FROM_VARIABLES, False)):
            return given
        return {**connection(lambda name: worked_out(name, task_vars.get(name), self._templar)), **given}

    def _in_words(self, error: GpuOpsError) -> GpuOpsError:
        """As the reader knows what it is about, who may have set variables and no options."""
        return error

    def _name(self) -> str:
        return str(self._task.action).rsplit(".", 1)[-1]


def environment_of(action: ActionBase) -> Dict[str, str]:
    """What a task, its block and its play say of the environment."""
    found: Dict[str, str] = {}
    action._compute_environment_string(found)
    return found


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables, too, for this process, which is the task's own."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def connection_of_environment() -> Dict[str, Tuple[str, Any]]:
    """{option: (variable of the environment that says it, what it says; None where it does not)}."""
    spec = auth_argument_spec(env_fallback)
    said = ArgumentSpecValidator(spec).validate({}).validated_parameters
    variables = {name: option["fallback"][1] for name, option in spec.items() if "fallback" in option}
    return {name: (next(filter(os.environ.__contains__, names), names[0]), said.get(name))
            for name, names in variables.items()}


def checked(given: Mapping[str, Any], arguments: Mapping[str, Any], module: str) -> Dict[str, Any]:
    """The options as a module would have them: checked, converted, with defaults and what the environment sets."""
    result = ArgumentSpecValidator(dict(arguments, **auth_argument_spec(env_fallback))).validate(dict(given))
    if result.error_messages:
        raise GpuOpsError(
            "cluster.options_malformed",
            found="; ".join(result.error_messages),
            wanted="the options of gpuops.nvidia.%s" % module,
            remedy="correct them; `ansible-doc gpuops.nvidia.%s` describes each" % module,
        )
    # As data that any library can write: Ansible's texts are of kinds of its own, and a vaulted one is none
    plain: Dict[str, Any] = json.loads(json.dumps(result.validated_parameters, default=str))
    return plain
