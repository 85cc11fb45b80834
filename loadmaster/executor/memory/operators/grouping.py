"""Grouping the nodes of a joint graph into forward and backward operators.

Forward: a compute node whose results one other node alone reads, and the backward pass does not (small statistics
aside), is merged into its reader, since keeping what it makes never helps. Nodes that only update buffers run once,
next to an operator. Backward: nodes in graph order, save that gradients of parameters come as early as they can. Run
node by node, they are merged where holding the same forward results for longer costs nothing or next to nothing. Where
a compiler fuses, a backward operator is a run of nodes that fuse and read one another, and elementwise forward results
that it reads may be computed inside it instead of being kept or recomputed; some always are
(:mod:`loadmaster.executor.memory.operators.computed_inside`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import fx

from loadmaster.executor.memory.implementations.norms import recompute_node
from loadmaster.executor.memory.implementations.passes import DRAWN_FIRST
from loadmaster.executor.memory.implementations.registry import (
    EVERYTHING,
    BackwardAlternative,
    ImplementationFilter,
    Site,
)
from loadmaster.executor.memory.operators.backward_order import backward_order
from loadmaster.executor.memory.operators.computed_inside import with_computed_inside
from loadmaster.executor.memory.operators.fusion import (
    SMALL,
    is_created,
    is_elementwise,
    is_fusible,
    overwritable,
    written_anyway,
)
from loadmaster.executor.memory.operators.groups import BackwardGroup, Choice, Encoding, ForwardGroup, Operators
from loadmaster.executor.steps.step_graph import StepGraph, is_collective, is_compute, is_mutating, is_random

_SMALL_SHARE = 2000  # results below this share of all that the backward pass reads are not worth a decision

OfferedSite = tuple[BackwardAlternative, Site]


def group(
    step_graph: StepGraph, implementations: ImplementationFilter = EVERYTHING, *, fused: bool = False
) -> Operators:
    """Group a joint graph into operators; ``fused`` for a backend that fuses these. InputError: the filter leaves out
    an implementation that is not registered."""
    grouping = _Grouping(step_graph, implementations, fused=fused)
    if grouping.inlines:
        grouping = _Grouping(grouping.computing_inside(), implementations, fused=fused)
    return grouping.operators()


class _Grouping:
    def __init__(self, step_graph: StepGraph, implementations: ImplementationFilter, *, fused: bool) -> None:
        self.step_graph = step_graph
        self.fused = fused
        self.inlines = fused and implementations.inline
        compute = [n for n in step_graph.nodes if is_compute(n)]
        self.forward_nodes = [n for n in compute if n in step_graph.forward]
        backward = [n for n in compute if n not in step_graph.forward]
        self.backward_nodes = backward_order(step_graph, backward, fused=fused)
        self.place = {node: i for i, node in enumerate(self.backward_nodes)}
        roots = ((node, root) for node in self.forward_nodes for root in step_graph.results[node])
        self.recomputes = {node: found for node, root in roots if (found := recompute_node(root)) is not None}
        self.sites: dict[fx.Node, list[OfferedSite]] = {}
        for alternative in implementations.alternatives():
            for site in alternative.sites(step_graph.module):
                if self.inlines and self._is_inlining(site):
                    continue
                self.sites.setdefault(site.backward, []).append((alternative, site))
        self.pinned = self._pinned()
        self.wanted = self._wanted()
        self.read_forward = set(step_graph.reads(self.forward_nodes))
        self.owner: dict[fx.Node, int] = {}
        made = {r for n in self.forward_nodes for r in step_graph.results[n]}
        self.small_bytes = sum(step_graph.bytes_of(r) for r in made & self.wanted) // _SMALL_SHARE

    def operators(self) -> Operators:
        forward, encoded = self._with_derived(self._forward())
        if self.fused:
            over = overwritable(self.step_graph, forward, self.wanted)
            forward = [replace(f, overwrites=over.get(f.id)) for f in forward]
        self.forward = forward
        backward = self._backward(encoded)
        return Operators(self.step_graph, tuple(forward), tuple(backward), self.owner, self.pinned, self.recomputes)

    def computing_inside(self) -> StepGraph:
        """Copy of the step in which the backward pass computes inside what no plan would keep."""
        roots = self.step_graph.roots
        kept = {roots[n] for n in self.step_graph.forward_outputs if isinstance(n, fx.Node)} | set(self.pinned)
        kept.update(roots[n] for n in self.step_graph.backward_outputs if isinstance(n, fx.Node))
        kept.update(roots[s] for offered in self.sites.values() for _, site in offered for s in site.reads)
        kept.update(roots[n] for again in self.recomputes.values() for n in (again.node, *again.sources))
        kept |= written_anyway(self.step_graph, self.wanted)
        return with_computed_inside(self.step_graph, self._backward_runs(), kept)

    def _is_inlining(self, site: Site) -> bool:
        """Return whether the alternative only reads what can be computed inside the operator anyway."""
        producers = [self.step_graph.producer(self.step_graph.roots[s]) for s in site.sources]
        return site.parent is None and self._is_cheap(producers)

    def _is_cheap(self, nodes: Sequence[fx.Node]) -> bool:
        """Return whether a fused operator can compute what these nodes make inside itself for next to nothing."""
        return all(is_elementwise(n) or n in self.recomputes for n in nodes)

    def _pinned(self) -> tuple[fx.Node, ...]:
        """Results that a special recomputation reads, those it does not make, statistics next to a large result, and
        what the model keeps. Were these not pinned, a backward operator that reads an operator's statistics alone would
        need all it makes."""
        read = set(self.step_graph.reads(self.backward_nodes))
        found: dict[fx.Node, None] = dict.fromkeys(self.step_graph.kept)
        for node in self.forward_nodes:
            sizes = {r: self.step_graph.bytes_of(r) for r in self.step_graph.results[node]}
            largest = max(sizes.values(), default=0)
            found.update(dict.fromkeys(r for r, size in sizes.items() if r in read and size * SMALL <= largest))
        for node, again in self.recomputes.items():
            own = set(self.step_graph.reads([node]))
            sources = [self.step_graph.roots[s] for s in again.sources]
            kept = [r for r in sources if r not in own and not self.step_graph.is_resident(r)]
            kept += [r for r in self.step_graph.results[node] if r is not again.node]
            found.update(dict.fromkeys(kept))
        return tuple(found)

    def _wanted(self) -> set[fx.Node]:
        """Roots that some way of running the backward pass reads."""
        roots = self.step_graph.roots
        wanted = set(self.step_graph.reads(self.backward_nodes))
        wanted.update(roots[n] for n in self.step_graph.backward_outputs if isinstance(n, fx.Node))
        for offered in self.sites.values():
            for _, site in offered:
                wanted.update(roots[s] for s in site.sources)
                if site.parent is not None:
                    wanted.add(roots[site.parent])
        return wanted

    def _recomputable(self, node: fx.Node) -> bool:
        if node in self.recomputes:
            return True
        if any(r in self.step_graph.mutated for r in self.step_graph.reads([node])):
            return False
        return not (is_random(node) or is_mutating(node) or is_collective(node))

    def _merged(self) -> dict[fx.Node, list[fx.Node]]:
        """Forward nodes by the node that makes the operator's results. A small result that the backward pass reads
        stays apart from a large one that it does not, since to keep the one would be to keep both; so it is where a
        loop writes its positions into one tensor."""
        apart = written_anyway(self.step_graph, self.wanted) if self.fused else set[fx.Node]()
        while True:
            members = self._merged_but(apart)
            found = {small for node, nodes in members.items() if (small := self._kept_with_more(node, nodes))}
            if not found:
                return members
            apart |= found

    def _kept_with_more(self, node: fx.Node, nodes: Sequence[fx.Node]) -> fx.Node | None:
        """The last of an operator's nodes that the backward pass reads, if the operator's own result is large and only
        the forward pass reads it."""
        own = self.step_graph.results[node]
        if any(r in self.wanted for r in own) or sum(map(self.step_graph.bytes_of, own)) <= self.small_bytes:
            return None
        read = [n for n in nodes if any(r in self.wanted and r not in self.pinned for r in self.step_graph.results[n])]
        return max(read, key=self.step_graph.position.__getitem__, default=None)

    def _merged_but(self, apart: Collection[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
        """Forward nodes by the node that makes the operator's results; nodes in ``apart`` join no reader."""
        step_graph = self.step_graph
        outputs = {step_graph.roots[n] for n in step_graph.forward_outputs if isinstance(n, fx.Node)}
        readers: dict[fx.Node, dict[fx.Node, None]] = {n: {} for n in self.forward_nodes}
        for node in self.forward_nodes:
            for root in step_graph.reads([node]):
                if (source := step_graph.producer(root)) in readers:
                    readers[source][node] = None
        head: dict[fx.Node, fx.Node] = {}  # the node that makes the results of the operator
        for node in reversed(self.forward_nodes):
            head[node] = node
            # Statistics of a normalization are made once, whichever operator it is part of.
            own = (self.recomputes[node].node,) if self.fused and node in self.recomputes else step_graph.results[node]
            exposed = any(
                r in outputs or r in self.pinned or (r in self.wanted and step_graph.bytes_of(r) > self.small_bytes)
                for r in own
            )
            heads = {head[reader] for reader in readers[node]}
            exposed = exposed or DRAWN_FIRST in node.meta or node in apart
            if exposed or len(heads) != 1 or not self._recomputable(node):
                continue
            # A normalization fuses with the activation that reads it; run node by node it is worth a decision.
            special = any(n in self.recomputes for n in (node, *readers[node])) or len(readers[node]) > 1
            if special and not (self.fused and all(map(is_fusible, (node, *readers[node])))):
                continue
            if all(map(self._recomputable, readers[node])):
                head[node] = heads.pop()
        members: dict[fx.Node, list[fx.Node]] = {n: [] for n in self.forward_nodes if head[n] is n}
        for node in self.forward_nodes:
            members[head[node]].append(node)
        return members

    def _forward(self) -> list[ForwardGroup]:
        step_graph = self.step_graph
        members = self._merged()
        loss = step_graph.producer(step_graph.roots[step_graph.loss])
        side = [
            n
            for n in members
            if n is not loss
            and not any(r in self.wanted or r in self.read_forward or r in self.pinned for r in step_graph.results[n])
        ]
        order = [n for n in members if n is not loss and n not in set(side)] + [loss]
        place = {m: i for i, n in enumerate(order) for m in members[n]}
        beside: dict[int, list[fx.Node]] = {}
        for node in side:
            producers = [step_graph.producer(r) for r in step_graph.reads(members[node])]
            last = max((place[p] for p in producers if p in place), default=0)
            beside.setdefault(last, []).extend(members[node])
        groups = []
        for i, node in enumerate(order):
            nodes = tuple(sorted(members[node], key=step_graph.position.__getitem__))
            results = tuple(
                r
                for n in nodes
                for r in step_graph.results[n]
                if r not in self.pinned and (r in self.wanted or (n is node and r in self.read_forward))
            )
            inputs = {self.owner[r] for r in step_graph.reads(nodes) if r in self.owner}
            self.owner.update(dict.fromkeys(results, i))
            recomputable = all(self._recomputable(n) for n in nodes)
            groups.append(
                ForwardGroup(i, nodes, results, tuple(sorted(inputs)), recomputable, tuple(beside.get(i, ())))
            )
        return groups

    def _with_derived(self, forward: list[ForwardGroup]) -> tuple[list[ForwardGroup], dict[Site, int]]:
        """Put what is derived from an operator's result right after it, and renumber."""
        derived: dict[int, list[Encoding | fx.Node]] = {f.id: [] for f in forward}
        for f in forward:
            # A large result that the backward pass alone reads is worth a decision of its own.
            unread = [r for r in f.results if r not in self.read_forward]
            parts = [r for r in unread if self.step_graph.bytes_of(r) > self.small_bytes]
            derived[f.id] += parts if len(parts) < len(f.results) else []
        for backward, offered in self.sites.items():
            self.sites[backward] = usable = [(a, s) for a, s in offered if self._usable(s)]
            for alternative, site in usable:
                if site.parent is not None:
                    parent = self.owner[self.step_graph.roots[site.parent]]
                    derived[parent].append(Encoding(alternative, site))
        number: dict[int, int] = {}
        groups: list[ForwardGroup] = []
        encoded: dict[Site, int] = {}
        owner: dict[fx.Node, int] = {}
        for f in forward:
            number[f.id] = parent = len(groups)
            parts = [d for d in derived[f.id] if isinstance(d, fx.Node)]
            results = tuple(r for r in f.results if r not in parts)
            inputs = tuple(number[j] for j in f.inputs)
            groups.append(replace(f, id=parent, inputs=inputs, results=results))
            owner.update(dict.fromkeys(results, parent))
            for d in derived[f.id]:
                i = len(groups)
                part = ForwardGroup(i, (), (), (parent,), f.recomputable, encodes=parent)
                if isinstance(d, fx.Node):
                    groups.append(replace(part, results=(d,)))
                    owner[d] = i
                else:
                    groups.append(replace(part, encoding=d))
                    encoded[d.site] = i
        self.owner = owner
        return groups, encoded

    def _usable(self, site: Site) -> bool:
        """Return whether the plan can hold what the alternative reads (an input, say, has no operator to encode)."""
        roots = self.step_graph.roots
        if site.parent is not None and roots[site.parent] not in self.owner:
            return False
        held = [roots[s] for s in site.sources]
        return all(r in self.owner or r in self.pinned or self.step_graph.is_resident(r) for r in held)

    def _needs(self, nodes: Sequence[fx.Node]) -> set[int]:
        return {self.owner[r] for r in self.step_graph.reads(nodes) if r in self.owner}

    def _is_small(self, node: fx.Node) -> bool:
        return sum(self.step_graph.bytes_of(r) for r in self.step_graph.results[node]) <= self.small_bytes

    def _joins(self, before: Sequence[fx.Node], node: fx.Node) -> bool:
        """Return whether a backward node joins the operator before it."""
        if self.fused:
            return is_fusible(node) and is_fusible(before[-1]) and not is_created(node)
        held, needs = self._needs(before), self._needs([node])
        if node in self.sites or not held:
            plain = not held and not any(n in self.sites for n in before)
            light = all(self._is_small(n) for n in before)
            return plain and (light or (not needs and node not in self.sites))
        made = {r for n in before for r in self.step_graph.results[n]}
        return needs <= held and (self._is_small(node) or any(r in made for r in self.step_graph.reads([node])))

    def _inlinable(self, nodes: Sequence[fx.Node]) -> list[int]:
        """Forward operators that a fused backward operator can compute inside itself."""
        if not (self.inlines and all(map(is_fusible, nodes))):
            return []
        needed = [self.forward[i] for i in sorted(self._needs(nodes))]
        return [f.id for f in needed if f.nodes and self._is_cheap(f.nodes) and f.recomputable]

    def _with_inlined(self, choice: Choice, nodes: Sequence[fx.Node]) -> list[Choice]:
        """The choice, and the same with each elementwise forward result, and with all, computed inside."""
        usable = [i for i in self._inlinable(nodes) if i in choice.needs]
        sets = [(i,) for i in usable] + ([tuple(usable)] if len(usable) > 1 else [])
        found = [choice]
        for inlined in sets:
            inputs = {j for i in inlined for j in self.forward[i].inputs}
            needs = tuple(sorted(set(choice.needs) - set(inlined) | inputs - set(inlined)))
            if not inputs & set(inlined):
                found.append(replace(choice, needs=needs, inlined=inlined))
        return found

    def _backward_runs(self) -> list[list[fx.Node]]:
        runs: list[list[fx.Node]] = []
        for node in self.backward_nodes:
            if runs and self._joins(runs[-1], node):
                runs[-1].append(node)
            else:
                runs.append([node])
        return [run for stretch in runs for run in self._connected(stretch)] if self.fused else runs

    def _connected(self, stretch: Sequence[fx.Node]) -> list[list[fx.Node]]:
        """Split nodes that follow one another and fuse into runs that read nothing of each other, in order of ends. A
        result of next to no bytes joins what comes before it."""
        runs: dict[int, list[fx.Node]] = {}
        made_in: dict[fx.Node, int] = {}  # by root, the run that makes it
        for i, node in enumerate(stretch):
            joined = {made_in[r] for r in self.step_graph.reads([node]) if r in made_in}
            if not joined and self._is_small(node):
                joined = set(list(runs)[-1:])
            run = sorted((n for j in joined for n in runs.pop(j)), key=self.place.__getitem__)
            runs[i] = [*run, node]
            made_in.update((r, i) for n in runs[i] for r in self.step_graph.results[n])
        return list(runs.values())

    def _backward(self, encoded: dict[Site, int]) -> list[BackwardGroup]:
        runs = self._backward_runs()
        # A gradient that is a forward result as it stands must be there when the pass returns.
        returned = [self.step_graph.roots[n] for n in self.step_graph.backward_outputs if isinstance(n, fx.Node)]
        at_end = {self.owner[r] for r in returned if r in self.owner}
        groups = []
        for k, run in enumerate(runs, start=1):
            end = at_end if k == len(runs) else set()
            choices = [Choice(tuple(sorted(self._needs(run) | end)))]
            for alternative, site in (o for n in run for o in self.sites.get(n, ())):
                needs = self._needs([n for n in run if n is not site.backward]) | end
                needs |= {self.owner[r] for s in site.sources if (r := self.step_graph.roots[s]) in self.owner}
                code = encoded.get(site) if site.parent is not None else None
                if code is not None:
                    needs.add(code)
                choices.append(Choice(tuple(sorted(needs)), alternative, site, code))
            choices = [v for c in choices for v in self._with_inlined(c, run)]
            groups.append(BackwardGroup(k, tuple(run), tuple(choices)))
        return groups
