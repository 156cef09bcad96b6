# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options and attributes that every module which changes a host shares."""
from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  allowed_disruption:
    description:
      - The most disturbing step that may be done.
      - A step above it is reported in RV(deferred) and not done.
    type: str
    choices: [none, service_restart, runtime_restart, gpu_reset, driver_reload, reboot]
    default: driver_reload
  approved_plan:
    description:
      - An approved plan, whole, as M(gpuops.nvidia.gpu_plan) returned it in RV(gpuops.nvidia.gpu_plan#module:plan), or
        the name of one that it kept on this host, as in RV(gpuops.nvidia.gpu_plan#module:kept_as).
      - The module does exactly the steps of its own capability in it, or stops before the first change and names what
        differs. Host, schema and policy are compared too. Steps whose effect is there already may be missing, and a
        step may disturb less. Where the approved plan has no step of the capability, none is done.
      - Left out, the module is held to nothing.
      - Only the module's own part of the plan is sent to the host. One that is kept there has to be the plan that its
        name says; one that is not there any more is refused.
    type: raw
  from_variables:
    description:
      - Whether options that the task does not give are those that the variables of the module's role say, in the
        inventory or where else variables are set. The roles' README pages list them.
      - A variable that is set nowhere counts as the role's default, whether the role takes part in the play or not.
    type: bool
    default: false
  lock_timeout:
    description:
      - How many seconds to wait for another run that works on the same host; V(0) is not to wait.
      - When the time is over, the module fails and says who works there, and since when.
    type: int
    default: 600
  progress_interval:
    description:
      - After how many seconds, and then how often, to say on the controller's terminal what the host is at; V(0) is to
        say nothing. What is done sooner is not told of.
      - Nothing is said in check mode, of a task with C(no_log), and where the output is data for programs. The
        collection's page on progress says when it cannot be.
    type: int
    default: 30
  run_id:
    description:
      - Names the run to others, and tells its calls from theirs. Set by the collection itself.
    type: str
    default: ""
  resumed_step:
    description:
      - The step that the controller has carried out since the previous call. Set by the collection itself.
    type: str
    default: ""
  transaction_failed:
    description:
      - Whether O(resumed_step) failed; the module then only writes down what came with it.
      - Set by the collection itself.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode and tells exactly what it would do.
    support: full
  diff_mode:
    description: Shows each step's change.
    support: full
  idempotent:
    description: A second run with the same options changes nothing.
    support: full
  platform:
    description: Systems that the module runs on.
    platforms: posix
    support: full
"""

    READER = r"""
attributes:
  check_mode:
    description: Can run in check mode; it changes nothing in any mode.
    support: full
  diff_mode:
    description: The module changes nothing, so there is nothing to show.
    support: N/A
  idempotent:
    description: The module changes nothing.
    support: full
  platform:
    description: Systems that the module runs on.
    platforms: posix
    support: full
"""
