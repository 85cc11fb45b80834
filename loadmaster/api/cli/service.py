"""The service from the command line: ``serve`` and ``worker`` run it, the others talk to one."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from loadmaster.api.cli import planning
from loadmaster.api.cli.files import read_document
from loadmaster.api.cli.server import add_service, connect
from loadmaster.api.cli.terminal import Terminal
from loadmaster.api.client import PlanHandle
from loadmaster.api.columns import moment, table
from loadmaster.api.documents import PlanResource
from loadmaster.errors import InputError
from loadmaster.models.files import expect_writable
from loadmaster.models.kinds import Problem, all_kinds, read_problem
from loadmaster.models.units import show_cost, show_limit, show_share
from loadmaster.planner.options import PlanOptions, PlanProgress

# How long an interrupted command waits for the plan that the service has so far.
_INCUMBENT_WITHIN_S = 15.0


def serve_arguments(serve: argparse.ArgumentParser) -> None:
    """Add the arguments of ``serve`` to its parser."""
    serve.description = _serve.__doc__
    serve.add_argument("--host", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (8642)")
    serve.add_argument(
        "--allowed-host",
        action="append",
        metavar="NAME",
        help="a name that it is reached by, in addition to localhost; repeat",
    )
    serve.add_argument(
        "--keys", choices=("off", "required"), help="whether requests need an API key (off: on this machine alone)"
    )
    serve.add_argument("--workers", type=int, metavar="N", help="local workers (1); 0: only remote ones")
    _add_settings(serve)
    serve.set_defaults(run=_serve)


def worker_arguments(worker: argparse.ArgumentParser) -> None:
    """Add the arguments of ``worker`` to its parser."""
    worker.description = _worker.__doc__
    _add_settings(worker)
    worker.set_defaults(run=_worker)


def submit_arguments(submit: argparse.ArgumentParser) -> None:
    """Add the arguments of ``submit`` to its parser."""
    submit.description = _submit.__doc__
    submit.add_argument("problem", metavar="PROBLEM.json", help="- is standard input")
    planning.add_limits(submit)
    planning.add_options(submit)
    submit.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="as many as you like")
    _add_service(submit)
    submit.set_defaults(run=_submit)


def watch_arguments(watch: argparse.ArgumentParser) -> None:
    """Add the arguments of ``watch`` to its parser."""
    watch.description = _watch.__doc__
    watch.add_argument("id", metavar="ID")
    watch.add_argument("-o", "--output", metavar="PLAN.json", help="write the plan here when it is done")
    _add_service(watch)
    watch.set_defaults(run=_watch)


def cancel_arguments(cancel: argparse.ArgumentParser) -> None:
    """Add the arguments of ``cancel`` to its parser."""
    cancel.description = _cancel.__doc__
    cancel.add_argument("id", metavar="ID")
    _add_service(cancel)
    cancel.set_defaults(run=_cancel)


def list_arguments(every: argparse.ArgumentParser) -> None:
    """Add the arguments of ``list`` to its parser."""
    every.description = _list.__doc__
    every.add_argument("--state", help="queued, running, succeeded, infeasible, failed or cancelled")
    every.add_argument("--kind", choices=all_kinds(), help="of problem")
    every.add_argument("--label", metavar="NAME=VALUE")
    every.add_argument("--owner", metavar="NAME", help="the name of the key that it was submitted with")
    every.add_argument("--limit", type=int, default=20, metavar="N", help="at most this many (20)")
    _add_service(every)
    every.set_defaults(run=_list)


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--engine", choices=("local", "ray"), help="where jobs run: here (local), or on the machines of a Ray cluster"
    )
    command.add_argument(
        "--database-url", metavar="URL", help="of the job store: postgresql:// or sqlite:// (SQLite in the home folder)"
    )
    command.add_argument("--log-format", choices=("text", "json"), help="of the log on stderr (text)")


def _add_service(command: argparse.ArgumentParser) -> None:
    add_service(command)
    command.add_argument("--json", action="store_true", help="print JSON")


def plan_on_server(problem: Problem, options: PlanOptions, arguments: argparse.Namespace, terminal: Terminal) -> int:
    """``plan --server``: submit, follow, fetch. An interrupt cancels the job and keeps what it has found."""
    with connect(arguments) as client:
        handle = client.submit(problem, options)
        terminal.say(f"submitted to {arguments.server}: {handle.id}")
        try:
            follow(handle, terminal, problem.unit)
            return planning.finish(handle.result(), arguments, terminal)
        except KeyboardInterrupt:
            terminal.say("cancelling, keeping the best plan so far (interrupt again to stop at once)")
            handle.cancel()
            planning.finish(handle.result(_INCUMBENT_WITHIN_S), arguments, terminal)
            return planning.INTERRUPTED


def follow(handle: PlanHandle, terminal: Terminal, unit: str) -> None:
    """Show what happens to a plan until it is final."""
    for event in handle.events():
        if event.type in ("progress", "incumbent"):
            figures: dict[str, Any] = {f.name: event.data.get(f.name) for f in dataclasses.fields(PlanProgress)}
            planning.report_progress(terminal, PlanProgress(**figures), unit)
        elif event.type == "state":
            terminal.progress(f"{handle.id}: {event.data['state']}")


def _serve(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Run the HTTP service and, unless told otherwise, one local worker. Settings come from LOADMASTER_* too."""
    from loadmaster.api.serve import serve
    from loadmaster.api.settings import Settings

    names = ("host", "port", "keys", "workers", "engine", "database_url", "log_format")
    allowed_hosts = ",".join(arguments.allowed_host) if arguments.allowed_host else None
    flags = {name: getattr(arguments, name) for name in names}
    serve(Settings.from_environment(allowed_hosts=allowed_hosts, **flags))
    return 0


def _worker(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Run one worker on the job store of a service, on this machine or another. Several may run."""
    from loadmaster.api import logs
    from loadmaster.api.settings import Settings
    from loadmaster.api.worker.work import work

    names = ("engine", "database_url", "log_format")
    settings = Settings.from_environment(**{name: getattr(arguments, name) for name in names})
    logs.configure(settings)
    work(settings)
    return 0


def _submit(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Hand a problem to a service and print the plan's id, for watch and cancel."""
    problem = read_problem(read_document(arguments.problem, "PROBLEM.json"))
    options = planning.options_of(arguments, problem)
    labels = dict(_label(text) for text in arguments.label)
    with connect(arguments) as client:
        handle = client.submit(problem, options, labels=labels)
        if arguments.json:
            terminal.json(handle.state().model_dump())
        else:
            terminal.data(handle.id)
    return 0


def _watch(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Follow a plan to its end; the exit status is that of planning here. An interrupt leaves the job running."""
    expect_writable(arguments.output, "-o")
    with connect(arguments) as client:
        handle = client.plan(arguments.id)
        follow(handle, terminal, handle.state().unit or "us")
        return planning.finish(handle.result(), arguments, terminal)


def _cancel(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Cancel a plan; the best one found so far is kept. Cancelling what is final changes nothing."""
    with connect(arguments) as client:
        plan = client.plan(arguments.id).cancel()
    if arguments.json:
        terminal.json(plan.model_dump())
    else:
        terminal.data(plan.state)
    return 0


def _list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List the plans of a service, newest first."""
    label = None if arguments.label is None else _label(arguments.label)
    if arguments.limit < 1:
        raise InputError("--limit", arguments.limit, "is less than 1", "Give a whole number of at least 1.")
    with connect(arguments) as client:
        found = client.list(state=arguments.state, kind=arguments.kind, label=label, owner=arguments.owner)
        resources = [plan for plan, _ in zip(found, range(arguments.limit), strict=False)]
    if arguments.json:
        terminal.json([plan.model_dump() for plan in resources])
    else:
        columns = ["id", "state", "kind", "name", "owner", "limit", "objective", "gap", "created"]
        terminal.data(table([_row(p) for p in resources], columns))
    return 0


def _row(plan: PlanResource) -> list[str]:
    limit = "" if plan.limit is None else show_limit(plan.limit.value, plan.limit.unit)
    objective = "" if plan.objective is None else show_cost(plan.objective, plan.unit or "us")
    gap = "" if plan.gap is None else show_share(plan.gap)
    return [plan.id, plan.state, plan.kind, plan.name, plan.owner or "", limit, objective, gap, moment(plan.created_at)]


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InputError("--label", text, "is not NAME=VALUE", "Write it as --label run=baseline.")
    return name, value
