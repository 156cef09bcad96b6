# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plan of a fleet: what is to be done to many hosts and their clusters, as one thing to read and to approve. Pure.

  alike.py     what plans of hosts have in common, and one digest for plans that read alike
  model.py     Note (what is known of one host), Fleet, and fleet_of(), which makes one of the notes
  approval.py  what an approval of a fleet's plan is an approval of, and whether a host's plan is among it
  names.py     many hosts in few words: gpu[001-412]
  text.py      the plan for a terminal
  course.py    how far a run is, in a line where the change of a host begins or ends
  page.py      the same whole, as a page in Markdown or HTML

Each host is in one part of a Fleet, and each plan that several hosts have is in it once. A fleet's plan says what is
done to hosts; in which order that is, the rollout decides, and may be shown with it.
"""
