#!/usr/bin/python
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_rollout
short_description: Order a fleet's changes, and let hosts begin within one budget
version_added: 0.1.0
description:
  - Puts the hosts of a play in the order in which they are to be changed, and says of each host, when it asks, whether
    it may begin now. How many may be out of service at once is counted in the cluster, in one ConfigMap that all
    controllers share, so that slices of a job, several teams and a person together keep to it.
  - C(docs/rollout.md) describes the order, the limits, and what takes a place.
  - Runs on the controller, from where the Kubernetes API has to be reached; no host is asked.
author:
  - gpuops.nvidia contributors (@gpuops)
extends_documentation_fragment:
  - gpuops.nvidia.kubernetes_auth
options:
  state:
    description:
      - V(planned) plans all hosts of the play in one task, which wants C(run_once), and changes nothing. Every cluster
        of theirs has a rollout of its own, and so have those that are in none.
      - V(start) asks for one host whether it may begin, and waits until it may. Its place is reserved then, with those
        of all hosts that begin together with it. A host that may not begin is no failure; RV(started) says it. Of one
        that has begun it says whether it still has its place, which a run that is silent for long may lose to others;
        and, until its node is out of service, whether it may begin still. It has no place any more where it may not.
      - V(ended) tells what became of a host, by O(outcome).
      - V(settled) says of O(hosts) that nothing is left to be done to them, and that their nodes are in service. What
        runs hold of them that are no more is given back then; a failure is not.
      - V(closed) ends a run's part in its rollout, with O(planned) in every cluster that was planned. What it has begun
        and not ended stays held, and the next run takes it over. It may be said of a run that died, by O(run); where
        that has no open rollout, a warning names those that have.
    type: str
    choices: [planned, start, ended, settled, closed]
    required: true
  run:
    description:
      - Name of the run, the same for all its tasks and no other run's, C(run) of
        M(gpuops.nvidia.gpu_node_custody) included. Left out, the run names itself as that module does.
      - With C(@) and a controller, as RV(open) names runs, it is one of that controller.
    type: str
  hosts:
    description:
      - For V(planned), the hosts of the play that are to be planned, those included that could not be reached. All of
        the play by default.
      - For V(settled), those that need nothing.
    type: list
    elements: str
  plan_variable:
    description:
      - For V(planned), the variable of each host in which what M(gpuops.nvidia.gpu_plan) returned of it is registered.
        A host without it, or where that failed, is left as it is. One that could not be reached counts as out of reach.
    type: str
    default: gpu_planned
  aim:
    description:
      - What the rollout has in common with that of other runs. Runs with the same one share an open rollout, others
        wait until it is closed.
      - Slices of one job want the same, as C({{ awx_workflow_job_id }}). By default it follows from what the hosts are
        to become.
    type: str
    default: ""
  planned:
    description: For V(start), and for V(ended) where O(name) is not given, what this module returned with V(planned).
    type: dict
  unprepared:
    description:
      - For V(planned), hosts that have failed before their turn, as they were refused or could not be prepared. They
        are left as they are, their cliques with them.
    type: list
    elements: str
    default: []
  name:
    description: For V(ended), the name of the Node. By default that of the host.
    type: str
  timeout:
    description:
      - For V(start), seconds to wait. What does not end by itself in that time is not waited for, as a window that
        opens later, a canary that is watched for longer, a rollout that was stopped, or places that a person has to
        free.
    type: int
    default: 3600
  interval:
    description:
      - For V(start), seconds between two questions. A place that becomes free is seen with the next one. What Nodes say
        of themselves, as that one is Ready again, is read with the first question, anew after six intervals and after a
        minute at most, when a place has become free, and before anything begins.
    type: int
    default: 10
  lease_seconds:
    description:
      - For V(start), how long the run counts as being at work after its last sign of it. Those are the Leases of its
        nodes and what it writes down when it asks for a host, four times in these seconds.
      - For V(start) and V(settled), the same of runs that do not say it themselves.
    type: int
    default: 600
  unreachable:
    description:
      - Hosts of the run that cannot be reached by now; those of another cluster do not count. With V(planned) they are
        left as they are, their cliques with them.
    type: list
    elements: str
    default: []
  unwell:
    description:
      - For V(start), hosts of the run that need nothing and have failed their checks by now. Where their nodes are out
        of service, others do not wait for them.
    type: list
    elements: str
    default: []
  was_small:
    description:
      - For V(start), whether the host was RV(small) when it was let begin first, where it asks once more. One that was
        not goes on only while its window is open, where that is all that it has to wait for.
    type: bool
  untold:
    description:
      - For V(start), hosts of the run whose own V(start) has failed. They are left as they are, their cliques with
        them, and no other one waits for them.
    type: list
    elements: str
    default: []
  read_at:
    description:
      - For V(settled), when that was read by which these hosts need nothing, in seconds since the epoch by the clock of
        the controller. C(known) of M(gpuops.nvidia.gpu_node_custody) takes RV(clusters) then.
    type: float
  read_again_at:
    description: The same of hosts that were looked at since, by their names.
    type: dict
    default: {}
  signs:
    description:
      - What checks of yours have found of hosts, changed or not, by their names; of each a list of words that are the
        same wherever the same is found, as C(Xid 79).
      - A changed host with a sign that is no more common among hosts which wait for their change is not well. It takes
        a place then, and a canary among them has not gone well. What the Nodes tell counts beside.
      - With V(ended) and O(outcome=done) those of the host are written down, and count for other runs and later ones
        with the same aim, until the host is changed again or O(outcome=freed).
    type: dict
    default: {}
  outcome:
    description:
      - For V(ended). V(done) gives the host's place back. V(failed) keeps it, with O(reason), until a person or a later
        success frees it. Neither overrides what another run has found of the node since.
      - V(left) says that the host was not changed after all. With O(reason) it could not be, and what restarts together
        with it and has not begun is left too; without, it needed nothing any more.
      - V(freed) is a person's word that a failure was looked at, or what O(signs) has told of a host.
    type: str
    choices: [done, failed, left, freed]
  reason:
    description: For the outcome V(failed), what failed; for V(left), why the host could not be changed.
    type: str
    default: ""
  dead_runs:
    description:
      - Runs that are known to be no more, as RV(open) names them. What they hold may be taken over, and nobody waits
        for them.
    type: list
    elements: str
    default: []
  pool:
    description:
      - Name of the budget. A pool is a set of nodes with limits, slots and an open rollout of its own;
        O(label_selector) says which.
      - This and all options below are, where the task does not say them, those of the variables C(gpu_rollout_*).
    type: str
    default: gpus
  namespace:
    description: Where the ConfigMap C(gpuops-rollout) is. It is made where it is not there.
    type: str
    default: gpuops
  lease_namespace:
    description: Where the Leases of nodes are, which is C(namespace) of M(gpuops.nvidia.gpu_node_custody).
    type: str
    default: gpuops
  label_selector:
    description:
      - Which Nodes are of the pool. Of them those count that have GPUs; hosts of the play count whether it names their
        Nodes or not. In a cluster with many other nodes it saves a list of all of them.
    type: str
    default: ""
  startup_taint:
    description: Key of the taint that nodes join with; such a node takes no place. Follows C(gpu_startup_taint).
    type: str
    default: ""
  domain_label:
    description:
      - Label of Nodes that names the failure domain, as a rack or a zone. Where a Node has none, the host's variable
        C(gpu_rollout_domain) counts.
    type: str
    default: topology.kubernetes.io/zone
  job_labels:
    description:
      - Labels of pods whose values name a job that restarts as a whole. Hosts on which one has pods are changed
        together then, as O(unit_mode) says.
    type: list
    elements: str
    default: []
  limit:
    description:
      - How many hosts may be out of service at once, a number or a percentage of the hosts in service. V(1) by default.
      - The limits of an open rollout are those of the run that opened it. A person may cap them in the ConfigMap.
    type: raw
  domain_limit:
    description: The same of each failure domain. Without it there is no such limit.
    type: raw
  canaries:
    description: Whether one host of V(every_kind) goes before all others, which is the default, or V(none) does.
    type: str
  soak:
    description: How long a canary is watched before others follow, as V(10m). Nothing by default.
    type: raw
  expected_duration:
    description:
      - How long the change of a host takes, as V(30m), which is the default. Once hosts of its kind have been changed,
        what nine of ten of these took counts, but never more than what is given here. V(1m) at least.
    type: raw
  unit_mode:
    description:
      - How hosts that restart together are changed. V(parallel), which is the default, is all at once, V(rolling) one
        after another.
    type: str
  unit_modes:
    description:
      - The same for single cliques and job groups, a mapping by their names; that of a job group is C(NAMESPACE/NAME).
        An empty text is refused. One that no host of the run is in is warned of.
    type: raw
  max_failures:
    description: With how many failed hosts it still goes on. V(0) by default.
    type: raw
  max_unreachable:
    description:
      - With how many hosts out of reach it still goes on, a number or a percentage; V(0) stops at the first. V(20%) by
        default.
    type: raw
  seed:
    description: Any text; another one gives another order of hosts that are alike.
    type: str
  windows:
    description:
      - When changes may begin, a list of mappings, each with C(days), C(start), C(duration), C(zone) and, for some
        hosts, C(groups). V([]) is none; a text, an empty one too, is refused.
    type: raw
  freezes:
    description:
      - When none may, a list of mappings, each with C(from), C(to), C(reason) and, if need be, C(zone) and C(groups).
        V([]) is none; a text, an empty one too, is refused.
    type: raw
attributes:
  check_mode:
    description: Can run in check mode; the record is read and not written. V(start) answers at once then.
    support: full
  diff_mode:
    description: Has nothing to show.
    support: none
  idempotent:
    description: A second run with the same options changes nothing.
    support: full
"""

EXAMPLES = r"""
- name: Plan the rollout of all hosts, each of which has been planned into gpu_planned
  gpuops.nvidia.gpu_rollout:
    state: planned
    run: "{{ gpu_run }}"
    hosts: "{{ ansible_play_hosts_all }}"
    limit: 5%
    soak: 10m
    from_variables: true
  register: gpu_rollout_planned
  run_once: true

- name: Begin when it is this host's turn
  gpuops.nvidia.gpu_rollout:
    state: start
    run: "{{ gpu_run }}"
    planned: "{{ gpu_rollout_planned }}"
    from_variables: true
  register: gpu_rollout_start

- name: Leave it for a later run
  ansible.builtin.meta: end_host
  when: not gpu_rollout_start.started

- name: Give its place back
  gpuops.nvidia.gpu_rollout:
    state: ended
    run: "{{ gpu_run }}"
    planned: "{{ gpu_rollout_planned }}"
    outcome: done
    from_variables: true

- name: Say that the failure of a node was looked at
  gpuops.nvidia.gpu_rollout:
    state: ended
    name: gpu-7
    outcome: freed
"""

RETURN = r"""
clusters:
  description: One rollout for each cluster of the hosts, and one, with an empty name, for those that are in none.
  returned: with O(state=planned), with O(state=settled), and with O(state=closed) where O(planned) was given
  type: list
  elements: dict
  contains:
    name: {description: The cluster., type: str, returned: success}
    hosts: {description: Its hosts., type: list, elements: str, returned: success}
    alone:
      description: Whether all hosts of the run are in it, so that people need no name to tell it from others.
      type: bool
      returned: with O(state=planned)
    failed: {description: Whether it could not be planned; C(msg) says why then., type: bool, returned: success}
    changed: {description: Whether its record has changed., type: bool, returned: with O(state=closed) or V(settled)}
    told: {description: What a person is to know of it., type: str, returned: with O(state=closed) where it failed}
    namespace: {description: Where its record is., type: str, returned: with O(state=settled) and O(read_at)}
    since:
      description: O(read_at) by the clock of the API server.
      type: str
      returned: with O(state=settled) and O(read_at)
    since_of:
      description: O(read_again_at) of its hosts by the same clock.
      type: dict
      returned: with O(state=settled) and O(read_at)
    nodes:
      description: Nodes whose places were given back.
      type: list
      elements: str
      returned: with O(state=settled)
    rollout:
      description:
        - The rollout as data, with the hosts, those C(beside) and C(refused), the C(units) in order and C(limits),
          which are those of this run alone.
      type: dict
      returned: where it could be planned
    options: {description: What V(start) needs of the options., type: dict, returned: where it could be planned}
    decision:
      description:
        - What may begin now (C(may_start)), is C(waiting) with its cause, C(under_way), C(over), or why all of it is
          C(stopped). The limits that count now hold for it, those of an open rollout with the same aim and the caps
          in the cluster included; where another rollout is open, all of it waits for that.
      type: dict
      returned: where it could be planned
    text: {description: The same for a person., type: str, returned: where it could be planned}
    head:
      description:
        - What of it is of the instant, for a person, six lines at most. What stops it, what the first one waits for,
          how many go at once and which places are taken, by the limits that count now.
      type: list
      elements: str
      returned: where it could be planned
    silent:
      description: Hosts that could not be asked what is to be done to them; they count as out of reach.
      type: list
      elements: str
      returned: where it could be planned
    msg: {description: "As C(msg) of the task.", type: str, returned: failure}
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
    refusals: {description: "As RV(refusals).", type: list, elements: dict, returned: failure}
    held: {description: As RV(held)., type: list, elements: dict, returned: where it could be planned}
    open: {description: As RV(open)., type: dict, returned: where it could be planned}
of_hosts:
  description:
    - Of each host its C(place) (C(beside), C(refused), C(half_done), C(canary) or C(in_order)), its C(unit) and
      C(why), with RV(allowed_later) where it is not refused; and C(kept), true, where its node is out of service for
      checks that have failed, and has no place.
    - With O(state=settled) of those whose C(place) is C(refused), as their change has failed before and nobody has
      looked at it, or C(unknown), as the record of their cluster could not be read.
  returned: with O(state=planned) and O(state=settled)
  type: dict
  sample: {"gpu-1": {"place": "canary", "unit": "host gpu-1", "why": "canary of 8 x 10de:2330"}}
order:
  description: The hosts that are not refused, in the order in which they do best to ask.
  returned: with O(state=planned)
  type: list
  elements: str
text:
  description: All rollouts for a person, forty lines at most for each.
  returned: with O(state=planned)
  type: str
started:
  description: Whether the host may begin.
  returned: with O(state=start)
  type: bool
waiting:
  description: What the host would have to wait for longer; empty where it may begin.
  returned: with O(state=start)
  type: dict
  contains:
    unit: {description: What begins together with it., type: str, returned: success}
    cause:
      description:
        - C(stopped), C(rollout) of another run, C(run) that holds the node, C(others) that do, C(unreachable),
          C(canary), C(group), C(window), C(slots), C(turn), or C(person) who has to free the places that it needs.
      type: str
      returned: success
    why: {description: "The same in words, with whom or what it waits for.", type: str, returned: success}
    since: {description: From when on., type: str, returned: success}
    until: {description: "When it may begin at the earliest, where that is known.", type: str, returned: success}
place:
  description: The C(pool) and C(namespace) in which the host has a place, for
    O(gpuops.nvidia.gpu_node_custody#module:place). Empty for one that needs none.
  returned: with O(state=start)
  type: dict
taken:
  description: Whether a run had the node out of service when the place was given, as one that was killed.
  returned: with O(state=start)
  type: bool
small:
  description:
    - Whether it was let begin as one whose change takes no work away from it, so that no place, window, canary or
      clique was looked at for more than that. Of a host that is in no cluster, only while its window is closed.
  returned: with O(state=start)
  type: bool
allowed_later:
  description:
    - The most disturbing class that may be done, while the node stays in service, once the loaded driver has told what
      could not be planned before, which are the RV(gpuops.nvidia.gpu_plan#module:waiting) of its plan. Where its
      RV(gpuops.nvidia.gpu_plan#module:may_disturb) is more, the node has to be taken out of service.
    - C(reboot) for a node that has not taken work yet. Else C(driver_reload), as GPUs without a driver are at work for
      nobody, or C(service_restart) where the driver is loaded already, the cluster knows GPUs of the node, so that pods
      may come to them, or a run has left it out of service.
  returned: with O(state=start)
  type: str
  sample: reboot
together:
  description:
    - The other hosts of its unit that have their places with it, for
      O(gpuops.nvidia.gpu_node_custody#module:together). Empty for one that begins alone.
  returned: with O(state=start)
  type: list
  elements: str
slots:
  description: How the places stood, and who took them.
  returned: with O(state=start)
  type: str
  sample: "0 of 2 free; 2 in progress (gpu-1, gpu-4)"
waited:
  description: Seconds that were waited.
  returned: with O(state=start)
  type: int
notes:
  description: What should be known beside.
  returned: with O(state=start)
  type: list
  elements: str
node:
  description: The Node.
  returned: with O(state=ended)
  type: str
frees:
  description: What a person types who has looked at the failure.
  returned: with O(outcome=failed)
  type: str
held:
  description: Nodes that hold a place for a change of ours, or a failed one.
  returned: with O(state=closed)
  type: list
  elements: dict
  contains:
    node: {description: The Node., type: str, returned: success}
    host: {description: The host of its run., type: str, returned: success}
    own:
      description: With O(state=planned) the host of this run whose place it is, by cluster and Node; else empty.
      type: str
      returned: success
    run: {description: Which run., type: str, returned: success}
    state: {description: C(working) or C(failed)., type: str, returned: success}
    since: {description: From when on., type: str, returned: success}
    reason: {description: What failed., type: str, returned: success}
    repairs: {description: Whether it is for a repair., type: bool, returned: success}
    told:
      description:
        - The same for a person, with the command to type where its change has failed, or with what to do where this run
          has begun with it and lost it. Empty where another run is at work, or was.
      type: str
      returned: success
open:
  description: The open rollout of the pool; empty where there is none.
  returned: with O(state=closed)
  type: dict
  contains:
    aim: {description: What its runs have in common., type: str, returned: success}
    since: {description: From when on., type: str, returned: success}
    runs: {description: "Its runs, each with C(run), C(controller) and C(since).", type: list, elements: dict,
        returned: success}
# From docs/results.yml
status:
  description: HTTP status of the API server's answer.
  returned: failure, where the API server answered with an error
  type: int
code:
  description: Which refusal or failure it is. Stable; C(docs/refusals.md) lists them all.
  returned: failure
  type: str
  sample: driver.version_not_offered
found:
  description: What is there, when the module refuses or fails.
  returned: failure
  type: str
wanted:
  description: What was asked for, when the module refuses or fails.
  returned: failure
  type: str
remedy:
  description: What to do, when the module refuses or fails.
  returned: failure
  type: str
option:
  description: The option, or the role's variable, that RV(remedy) is about; empty where it is about none.
  returned: failure
  type: str
refusals:
  description: Every reason to refuse or fail; the first is the one that C(msg) tells in full.
  returned: failure
  type: list
  elements: dict
  contains:
    code: {description: "As RV(code).", type: str, returned: failure}
    found: {description: "As RV(found).", type: str, returned: failure}
    wanted: {description: "As RV(wanted).", type: str, returned: failure}
    remedy: {description: "As RV(remedy).", type: str, returned: failure}
    option: {description: "As RV(option).", type: str, returned: failure}
"""
