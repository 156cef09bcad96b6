# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Custody: which run has a node, from the moment that it is taken out of service until it is given back.

Lease   says who works on a node: one object a node in our namespace, owned by the Node, held by a run (leases.py). It
        is followed as client-go's leader election does: whoever waits measures with his own clock from when he has
        seen the record change.
Claim   is what a run says of a Node by server-side apply, as a field manager of its own (claims.py): the cordon, its
        reason, the opt-outs of machine managers. The API server counts who says a field: it goes with the last of
        them. So a run withdraws its claim, and whatever others have cordoned stays cordoned.
Mark    is what another manager has written that is at work on the node (marks.py). It is never written by us.
Hold    is the annotation by which an admin says that the node stays cordoned whatever becomes of our claim.

Taken (custody.py): marks, Lease, preview of the drain, claim, marks again, drain, components off the node. What fails
on the way is followed by the way back, in reverse order. Returned: Lease, marks, labels and start-up taint, claims
withdrawn, Lease gone. Each of them can be killed at any request: what is there then is a Lease that runs out and
claims that the next run finds on the Node, which takes the node over and completes it.

Between our tasks nobody renews a Lease, as each task of Ansible is a process of its own. So a Lease is as long as a
task may take, each of our tasks about the node renews it, and whoever has lost it stops.

Never touched: cordons, labels and annotations of others, and a node that somebody has uncordoned on purpose.
"""
