"""The last chunk that enters a node over its only entry has yet to get to the other ranks.

Let D be chunks (copies) that start outside node U, where every link into U that they may use holds one resource p, and
let these links have one latency. Of D let c be the chunk that is first in U last: at b, by a message M over p to rank
e; b >= tau[U, |D|], by the growth engine. Any other message M' that brings c into U arrives at b or later, so it takes
its turn on p after M (before M it would arrive before b, or at b if M took no time), and arrives at b + occupancy(c) or
later. A rank v of U other than e has c by a way whose last entry into U is M, at b + distance(e, v) or later, or some
M', at b + occupancy(c) or later. With W the ranks of U that need all of D,

    time >= tau[U, |D|] + min over e of max over v in W other than e of min(distance(e, v), occupancy(c)).
"""

from __future__ import annotations

import numpy as np

from loadmaster.models.collective.bounds.growth import Growth, Units, entered_nodes
from loadmaster.models.collective.bounds.network import NEVER, BoolArray, Network


def only_entry_ns(network: Network, growth: Growth, units: Units, chunks: BoolArray, wanting: BoolArray) -> int:
    """The bound of one node of each look that D starts outside of.

    Args:
        growth: of the chunks D, forwards; ``units`` are its units.
        chunks: [chunks] the set D.
        wanting: [ranks] that need all of D.
    """
    best = 0
    for node, together in entered_nodes(network, units, wanting):
        machines = [m for m in network.node_entries[node] if any(units.limit[k] for k in m.links)]
        links = [network.topology.links[k] for m in machines for k in m.links if units.limit[k]]
        if len(machines) != 1 or len({k.latency_ns for k in links}) > 1:
            continue
        distance_ns = network.distance_ns[np.unique(network.kind_of[chunks])].min(axis=0)
        again_ns = min(k.occupancy_ns(int(units.message_bytes[0])) for k in links)
        entered = sorted({k.target for k in links})
        # A rank is at distance 0 of itself.
        on_ns = np.minimum(distance_ns[np.ix_(entered, together)], again_ns).max(axis=1)
        best = max(best, growth.node_time_ns(node, units.count) + int(on_ns.min()))
    return min(best, NEVER)
