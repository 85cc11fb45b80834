"""Training steps small enough to time by hand, all legal schedules of them, and a second opinion on both.

The link moves one GB/s each way, so that a kB takes a microsecond. :class:`Simulated` moves things one event after the
other, in queues; :func:`counted_bytes` asks in every phase for everything whether it is there. Neither shares code with
the package beyond the calendar.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import strategies as st

from loadmaster.models.placement.problem import Tier
from loadmaster.models.training.phases import Phases
from loadmaster.models.training.plan import GroupPlan, Schedule, Stay, TrainingPlan
from loadmaster.models.training.problem import Group, Layer, LayerClass, Point, TrainingProblem

KB = 1000
HOST = Tier("host", 1.0, 1.0)
Name = tuple[object, ...]


def group(name: str, *layers: int, trained: bool = True, **fields: object) -> Group:
    """A group of 4 kB of weights and as much of gradients, with a copy and its gradient of 2 kB, 8 kB of state, updated
    in 3 us on the device and 5 us on the host; or frozen weights."""
    learned = {"gradient_bytes": 4, "copy_gradient_bytes": 2, "state_bytes": 8, "update_us": 3.0, "host_update_us": 5.0}
    values: dict[str, object] = {"weight_bytes": 4, "copy_bytes": 2, **(learned if trained else {}), **fields}
    values = {k: v * KB if k.endswith("_bytes") and isinstance(v, int) else v for k, v in values.items()}
    return Group(name, layers, **values)  # type: ignore[arg-type]


def step_of(
    layers: int, *groups: Group, points: Sequence[Point] = (), tier: Tier = HOST, **fields: object
) -> TrainingProblem:
    """Layers l0, l1, ... of one class, which by its first point takes 10 us each way and keeps 3 kB."""
    own = tuple(points) or (Point("keep", 10.0, 10.0, 3 * KB),)
    of = tuple(Layer(f"l{n}", 0) for n in range(layers))
    return TrainingProblem("tiny", of, (LayerClass("layer", own),), groups, tier, **fields)  # type: ignore[arg-type]


def plan_of(problem: TrainingProblem, schedule: Schedule, budget_bytes: int, step_us: float) -> TrainingPlan:
    """A plan by hand; what its replay gives is the caller's to know."""
    return TrainingPlan(
        name=problem.name,
        problem_sha256=problem.sha256,
        status="feasible",
        objective=step_us,
        unit="us",
        method="by hand",
        stopped_by="method",
        seconds={"build": 0.0, "solve": 0.0, "check": 0.0},
        solver={},
        check={"ok": True, "step_us": step_us},
        budget_bytes=budget_bytes,
        plain_us=step_us,
        schedule=schedule,
    )


def random_problem(seed: int, layers: int) -> TrainingProblem:
    """Layers with a group each, which may be checkpointed, and a head, which always keeps its results and shares the
    group of the first layer. One group is frozen. Updates wait for the norm of all gradients where the seed is odd."""
    rng = random.Random(seed)

    def point(name: str, kept: int, again_us: float = 0.0) -> Point:
        return Point(name, 20.0, 30.0 + again_us, kept * KB, rng.randint(0, 2) * KB, rng.randint(0, 9) * KB)

    groups = [group("tied", 0, layers - 1), *(group(f"g{n}", n, trained=n != 2) for n in range(1, layers))]
    groups = [replace(of, weight_bytes=rng.randint(3, 6) * KB) for of in groups]
    points = (point("keep", rng.randint(9, 12)), point("checkpoint", 2, rng.randint(10, 20)))
    problem = step_of(layers, *groups, points=points, tier=replace(HOST, latency_us=0.5), clip_grad_norm=seed % 2 == 1)
    head = Layer("head", 1)
    classes = (*problem.classes, LayerClass("head", (point("keep", 3),)))
    return replace(problem, name=f"random-{seed}", layers=(*problem.layers[:-1], head), classes=classes)


@st.composite
def problems(draw: st.DrawFn) -> TrainingProblem:
    """Steps of 1 to 4 layers and 1 to 3 groups, some of them shared or frozen, or such that the host cannot update."""
    layers = draw(st.integers(1, 4))
    times = st.sampled_from([0.0, 1.0, 2.5, 7.0, 20.0])
    sizes = st.sampled_from([0, 1, 2, 5, 9, 30, 60])
    some = st.sampled_from([1, 2, 5, 9, 30, 60])
    points = [
        Point(f"p{n}", draw(times), draw(times), draw(sizes) * KB, draw(sizes) * KB, draw(sizes) * KB)
        for n in range(draw(st.integers(1, 2)))
    ]
    groups = []
    for n in range(draw(st.integers(1, 3))):
        used = sorted(draw(st.sets(st.integers(0, layers - 1), min_size=1, max_size=2)))
        fields: dict[str, object] = {"weight_bytes": draw(some), "copy_bytes": draw(some)}
        trained = draw(st.integers(0, 4)) > 0
        if trained:
            fields |= {"gradient_bytes": draw(some), "copy_gradient_bytes": draw(sizes)}
            fields |= {"state_bytes": draw(sizes), "update_us": draw(times)}
            fields["host_update_us"] = draw(st.one_of(st.none(), times, times))
        groups.append(group(f"g{n}", *used, trained=trained, **fields))
    tier = Tier("host", draw(st.sampled_from([0.5, 1.0, 4.0])), draw(st.sampled_from([0.5, 1.0])), draw(times) / 10)
    disk = Tier("disk", draw(st.sampled_from([0.25, 2.0])), draw(st.sampled_from([0.5, 4.0])), draw(times) / 10)
    disk_or_none = draw(st.sampled_from([None, disk, disk]))
    fixed, passes, clip = draw(sizes) * KB, draw(st.integers(1, 2)), draw(st.booleans())
    return step_of(
        *(layers, *groups),
        points=points,
        tier=tier,
        disk=disk_or_none,
        fixed_bytes=fixed,
        micro_batches=passes,
        clip_grad_norm=clip,
    )


@st.composite
def schedules(draw: st.DrawFn, problem: TrainingProblem) -> Schedule:
    """Any schedule that goes by the rules, except that its bytes may be too many and that it may be stuck."""
    phases = Phases(problem)
    points = tuple(draw(st.integers(0, len(problem.points(n)) - 1)) for n in range(len(problem.layers)))
    plans = tuple(draw(group_plans(phases, g)) for g in range(len(problem.groups)))
    in_files = sum(plan.state == "disk" for plan in plans)
    return Schedule(points, plans, draw(st.integers(min(in_files, 1), in_files)))


@st.composite
def group_plans(draw: st.DrawFn, phases: Phases, g: int) -> GroupPlan:
    of, count = phases.problem.groups[g], len(phases)
    last, following, begin = phases.last_gradient(of), phases.next_use(of), phases.first_gradient(of)
    if of.is_trained:
        places = [("device", "device", "device"), ("device", "host", "device")]
        places += [(weights, "host", "device") for weights in ("copy", "streamed")]
        if of.host_update_us is not None:
            places += 2 * [(weights, "host", "host") for weights in ("copy", "streamed")]
            if phases.problem.disk is not None and of.state_bytes:
                places += 3 * [(weights, "disk", "host") for weights in ("copy", "streamed")]
    else:
        places = [(weights, "device", "none") for weights in ("device", "copy", "streamed")]
    weights, state, update = draw(st.sampled_from(places))
    plan = GroupPlan(weights, state, update)  # type: ignore[arg-type]
    if update == "device":
        after = draw(st.integers(phases.update_from(of), following - 1))
        plan = replace(plan, update_after=after)
        if state == "host":
            load = draw(st.integers(max(0, after + 1 - count), after))
            plan = replace(plan, update_stay=Stay(load, draw(st.integers(after + 1, load + count))))
    if update == "host":
        plan = replace(plan, gradient_gone_at=draw(st.integers(last + 1, begin + count)))
        if weights == "copy":
            plan = replace(plan, copy_load_at=draw(st.integers(last + 1, following)))
    if weights == "streamed":
        plan = replace(plan, stays=draw(stays_of(phases.uses[g], count, of.is_trained)))
    return plan


@st.composite
def stays_of(draw: st.DrawFn, uses: Sequence[int], count: int, trained: bool) -> tuple[Stay, ...]:
    first = 0 if trained else draw(st.integers(0, len(uses) - 1))
    around = [*uses[first:], *(use + count for use in uses[:first])]
    runs = [[around[0]]]
    for use in around[1:]:
        if draw(st.booleans()):
            runs.append([use])
        else:
            runs[-1].append(use)
    before = [runs[-1][-1] - count, *(run[-1] for run in runs[:-1])]
    loads = [draw(st.integers(last + 1, run[0])) for last, run in zip(before, runs, strict=True)]
    found = []
    for run, load, after in zip(runs, loads, [*loads[1:], loads[0] + count], strict=True):
        gone = draw(st.integers(run[-1] + 1, after))
        shift = load % count - load
        found.append(Stay(load + shift, gone + shift))
    return tuple(draw(st.permutations(found)))


def counted_bytes(problem: TrainingProblem, schedule: Schedule) -> dict[str, list[int]]:
    """Device bytes by role, phase by phase, from the words of the rules."""
    phases = Phases(problem)
    count, layers = len(phases), len(problem.layers)

    def there(phase: int, start: int, end: int) -> bool:
        return any(start <= phase + shift * count < end for shift in range(-1, 4))

    found: dict[str, list[int]] = {role: [] for role in ("fixed", "activation", "weights", "gradient", "state")}
    for phase in range(count):
        held = dict.fromkeys(found, 0)
        held["fixed"] = problem.fixed_bytes
        for n, number in enumerate(schedule.points):
            point = problem.points(n)[number]
            within = phase % (2 * layers)
            held["activation"] += point.kept_bytes * (n <= within <= 2 * layers - 1 - n)
            held["activation"] += point.forward_bytes * (within == n)
            held["activation"] += point.backward_bytes * (within == 2 * layers - 1 - n)
        for of, plan in zip(problem.groups, schedule.groups, strict=True):
            if plan.weights == "device":
                held["weights"] += of.weight_bytes
            elif plan.weights == "copy":
                held["weights"] += of.copy_bytes
            else:
                held["weights"] += of.copy_bytes * sum(there(phase, s.load_at, s.gone_at) for s in plan.stays)
            if plan.state == "device":
                held["state"] += of.state_bytes
            begin, size = phases.first_gradient(of), of.gradient_bytes
            if plan.weights != "device":
                size = of.copy_gradient_bytes
            if plan.update == "device" and plan.update_after is not None:
                held["gradient"] += size * there(phase, begin, plan.update_after + 1)
            if plan.update == "host" and plan.gradient_gone_at is not None:
                held["gradient"] += size * there(phase, begin, plan.gradient_gone_at)
            if plan.update_stay is not None and there(phase, plan.update_stay.load_at, plan.update_stay.gone_at):
                held["state"] += of.state_bytes * (plan.state == "host")
                held["weights"] += of.weight_bytes * (plan.weights != "device")
                held["weights"] += of.copy_bytes * (plan.weights == "streamed")
        for role, size in held.items():
            found[role].append(size)
    return found


def counted_host_bytes(problem: TrainingProblem, schedule: Schedule) -> int:
    size = 0
    for of, plan in zip(problem.groups, schedule.groups, strict=True):
        size += of.state_bytes * (plan.state == "host")
        size += (of.weight_bytes + of.copy_bytes) * (plan.weights != "device")
        size += of.copy_gradient_bytes * (plan.update == "host")
    in_files = [
        of.state_bytes for of, plan in zip(problem.groups, schedule.groups, strict=True) if plan.state == "disk"
    ]
    return size + schedule.disk_buffers * max(in_files, default=0)


class Deadlock(Exception):
    """Nothing will ever happen again."""


@dataclass
class _Job:
    """A move in a queue, which may start once ``source`` has ended."""

    name: Name
    us: float
    source: Name | None
    order: tuple[int, int, int] = (0, 0, 0)
    also: Name | None = None


@dataclass
class _Worker:
    """Does one job after the other, in the order in which they come."""

    jobs: deque[_Job] = field(default_factory=deque)
    is_busy: bool = False


class Simulated:
    """So many steps, event by event. ``starts`` and ``ends`` are by name: ("phase", step, phase), and (what, step,
    group, number) for a "store", "load", "host update", "device update", "disk write" or "disk read", both by the step
    of the update before; "position" is what all of a phase ends."""

    def __init__(self, problem: TrainingProblem, schedule: Schedule, steps: int) -> None:
        self.problem, self.schedule, self.steps = problem, schedule, steps
        self.phases = Phases(problem)
        self.starts: dict[Name, float] = {}
        self.ends: dict[Name, float] = {}
        self.sizes: dict[Name, int] = {}
        self.queued_stores: dict[int, list[_Job]] = defaultdict(list)
        self.queued_loads: dict[int, list[_Job]] = defaultdict(list)
        self.freed: dict[int, list[Name]] = defaultdict(list)
        self.needed: dict[int, list[Name]] = defaultdict(list)
        self.updates: dict[int, list[tuple[int, Name, Name | None]]] = defaultdict(list)
        for step in range(steps):
            for g in range(len(problem.groups)):
                self._arrange(step, g)
        self.now = 0.0
        self.events: list[tuple[float, int, Name]] = []
        self.to_host, self.from_host, self.host, self.disk = _Worker(), _Worker(), _Worker(), _Worker()
        sent = sorted((at, job.order, g) for at, g, job in self._gradients_to_files())
        # Groups with state in files take turns in buffers, in the order in which their gradients are sent.
        self.turns = [g for *_, g in sent]
        self.reads: list[Name | None] = [None] * schedule.disk_buffers
        self.given = self.taken = 0
        self._run()

    def _gradients_to_files(self) -> Iterator[tuple[int, int, _Job]]:
        for at, jobs in self.queued_stores.items():
            for job in jobs:
                _, step, g, _ = job.name
                assert isinstance(g, int)
                if step == 0 and self.schedule.groups[g].state == "disk":
                    yield at, g, job

    def step_us(self) -> list[float]:
        last = len(self.phases) - 1
        ends = [0.0, *(self.ends["position", step, last] for step in range(self.steps))]
        return [end - start for start, end in pairwise(ends)]

    def _arrange(self, step: int, g: int) -> None:
        of, plan, count = self.problem.groups[g], self.schedule.groups[g], len(self.phases)
        zero = step * count
        last, following = zero + self.phases.last_gradient(of), zero + self.phases.next_use(of)

        def new_weights(of_step: int) -> Name | None:
            return {"host": ("host update", of_step, g, 0), "device": ("store", of_step, g, 0), "none": None}[
                plan.update
            ]

        def store(at: int, gone_at: int, size: int) -> None:
            name = ("store", step, g, 0)
            self.sizes[name] = size
            self.queued_stores[at].append(_Job(name, self.problem.host.store_us(size), None, (gone_at, g, 0)))
            self.freed[gone_at].append(name)

        def load(number: int, at: int, needed: int, size: int, source: Name | None) -> Name:
            name = ("load", step, g, number)
            self.sizes[name] = size
            order = (needed, g, int(number < 0))
            self.queued_loads[at].append(_Job(name, self.problem.host.load_us(size), source, order))
            return name

        if plan.update_after is not None:
            after, loaded = zero + plan.update_after, None
            if plan.update_stay is not None:
                start, end = zero + plan.update_stay.load_at, zero + plan.update_stay.gone_at
                size = of.state_bytes if plan.weights == "device" else of.state_bytes + of.weight_bytes
                loaded = load(-1, start, after, size, ("store", step - 1, g, 0))
                store(after + 1, end, size + (of.copy_bytes if plan.weights == "streamed" else 0))
            self.updates[after].append((g, ("device update", step, g, 0), loaded))
        if plan.gradient_gone_at is not None:
            store(last + 1, zero + plan.gradient_gone_at, of.copy_gradient_bytes)
        if plan.copy_load_at is not None:
            name = load(0, zero + plan.copy_load_at, following, of.copy_bytes, new_weights(step))
            self.needed[following].append(name)
        for number, stay in enumerate(plan.stays):
            at = zero + stay.load_at
            both = [*self.phases.uses[g], *(use + count for use in self.phases.uses[g])]
            first = min(zero + use for use in both if zero + use >= at)
            source = new_weights(step - 1 if first <= last else step)
            self.needed[first].append(load(number, at, first, of.copy_bytes, source))

    def _may_start(self, job: _Job) -> bool:
        also = job.also
        if also is not None and also[0] == "read":  # of a number, which may be queued by now
            number = also[1]
            assert isinstance(number, int)
            if number >= len(self.reads):
                return False
            also = self.reads[number]
        return self._has_ended(job.source) and self._has_ended(also)

    def _has_ended(self, name: Name | None) -> bool:
        return name is None or (isinstance(name[1], int) and name[1] < 0) or name in self.ends

    def _device(self) -> Iterator[list[Name] | float]:
        """Work of the device: what it waits for, or for how long it is busy."""
        count = len(self.phases)
        times = [self.problem.points(n)[number] for n, number in enumerate(self.schedule.points)]
        for position in range(self.steps * count):
            step, phase = divmod(position, count)
            self.to_host.jobs.extend(sorted(self.queued_stores[position], key=lambda job: job.order))
            yield self.freed[position]
            self.from_host.jobs.extend(sorted(self.queued_loads[position], key=lambda job: job.order))
            yield self.needed[position]
            point = times[self.phases.layer(phase)]
            self.starts["phase", step, phase] = self.now
            yield point.forward_us if self.phases.is_forward(phase) else point.backward_us
            self.ends["phase", step, phase] = self.now
            for g, name, loaded in sorted(self.updates[position], key=lambda update: update[0]):
                yield [] if loaded is None else [loaded]
                self.starts[name] = self.now
                yield self.problem.groups[g].update_us
                self.ends[name] = self.now
            self.ends["position", step, phase] = self.now

    def _run(self) -> None:
        device = self._device()
        wanted: list[Name] | float | None = next(device)
        until: float | None = None
        while wanted is not None:
            self._start_jobs()
            if isinstance(wanted, float) and until is None:
                until = self.now + wanted
                heapq.heappush(self.events, (until, len(self.starts), ("device",)))
            if until is not None:
                goes_on = self.now >= until
            else:
                assert isinstance(wanted, list)
                goes_on = all(map(self._has_ended, wanted))
            if goes_on:
                until, wanted = None, next(device, None)
                continue
            if not self.events:
                raise Deadlock
            self.now, _, name = heapq.heappop(self.events)
            self._end(name)

    def _end(self, name: Name) -> None:
        if name == ("device",):
            return
        self.ends[name] = self.now
        what, step, g, _ = name
        assert isinstance(step, int) and isinstance(g, int)
        if what == "store":
            self.to_host.is_busy = False
            if self.schedule.groups[g].update == "host":
                waits = ("phase", step, len(self.phases) - 1) if self.problem.clip_grad_norm else None
                us = self.problem.groups[g].host_update_us
                assert us is not None
                self.host.jobs.append(_Job(("host update", step, g, 0), us, waits, also=self._read(g)))
        elif what == "load":
            self.from_host.is_busy = False
        elif what in ("disk write", "disk read"):
            self.disk.is_busy = False
        else:
            self.host.is_busy = False
            if self.schedule.groups[g].state == "disk":
                self._exchange(step, g)

    def _read(self, g: int) -> Name | None:
        """What a host update waits for: the read of its state."""
        if self.schedule.groups[g].state != "disk":
            return None
        self.taken += 1
        return ("read", self.taken - 1)

    def _exchange(self, step: int, g: int) -> None:
        disk, turns, groups = self.problem.disk, self.turns, self.problem.groups
        assert disk is not None and g == turns[self.given % len(turns)]
        following = turns[(self.given + self.schedule.disk_buffers) % len(turns)]
        self.given += 1
        self.disk.jobs.append(_Job(("disk write", step, g, 0), disk.store_us(groups[g].state_bytes), None))
        name: Name = ("disk read", step, following, 0)
        self.disk.jobs.append(_Job(name, disk.load_us(groups[following].state_bytes), None))
        self.reads.append(name)

    def _start_jobs(self) -> None:
        for worker in (self.to_host, self.from_host, self.host, self.disk):
            if not worker.is_busy and worker.jobs and self._may_start(worker.jobs[0]):
                job = worker.jobs.popleft()
                worker.is_busy = True
                self.starts[job.name] = self.now
                heapq.heappush(self.events, (self.now + job.us, len(self.starts), job.name))


def steady_us(step_us: Sequence[float], steps: int = 16) -> float | None:
    """The mean of the shortest cycle, of at most 8, in which the last steps repeat; None where there is none."""
    for cycle in range(1, 9):
        if all(abs(step_us[-n] - step_us[-n - cycle]) < 1e-6 for n in range(1, steps)):
            return sum(step_us[-cycle:]) / cycle
    return None
