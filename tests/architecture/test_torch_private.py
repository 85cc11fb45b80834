"""Nothing outside ``loadmaster.executor.torch_private`` names what is private in PyTorch, or sets its attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.sources import Source, nodes, sources

ROOM = "loadmaster.executor.torch_private"
# Attributes of PyTorch's objects, though classes of ours have some of that name.
OF_PYTORCH = {"_version", "_modules"}
BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
# Attributes of Python's own objects.
OF_PYTHON = {"_asdict", "_exit", "_fields", "_getframe", "_make", "_replace", "_repr_html_"}
# Place -> why it may.
SETS_TORCH = {
    ("loadmaster.executor.costs.apart_child", "torch.backends.cudnn.allow_tf32"): "a public setting",
}
# Module that replaces attributes by ``patched``, ``patch.object`` or ``setattr`` -> why the list has none of them.
REPLACES = {
    "loadmaster.executor.steps.one_graph.graph_breaks": "sets settings of Dynamo's",
    "loadmaster.executor.steps.one_graph.replaced_attributes": "has the function that sets what others list",
    "loadmaster.executor.steps.launches": "sets names in modules that Inductor wrote",
    "loadmaster.executor.steps.tracing": "sets what others list",
    "loadmaster.executor.memory.implementations.passes": "sets what others list",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def dotted(node: ast.expr) -> list[str]:
    """Parts of ``a.b.c``; the first is empty where it is no name."""
    if isinstance(node, ast.Attribute):
        return [*dotted(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


def of_torch(tree: ast.Module) -> set[str]:
    """Names that a module has from PyTorch, directly or by the room."""
    names = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names if a.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("torch", ROOM)):
            names |= {a.asname or a.name for a in node.names}
    return names


def own_names() -> set[str]:
    """Private names that Loadmaster's modules define."""
    found = set()
    for source in outside():
        for node in nodes(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found |= {node.attr} if dotted(node)[0] in ("self", "cls") else set()
    return found


def outside() -> list[Source]:
    """Modules of the only floor that may import PyTorch, without the room."""
    floor = [source for source in sources() if source.name.startswith("loadmaster.executor")]
    return [source for source in floor if not f"{source.name}.".startswith(f"{ROOM}.")]


def private_imports(tree: ast.Module) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "torch" and (any(map(is_private, parts)) or parts[1:3] == ["fx", "experimental"]):
                yield f"{node.lineno}: import of {name}"


def private_attributes(tree: ast.Module, own: set[str]) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            parts, name = dotted(node), node.attr
            if parts[:-1] in (["self"], ["cls"]) or parts[0] == "aten" or parts[:2] == ["torch", "ops"]:
                continue  # operators have the names of PyTorch's schema
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
            given = node.args[1] if len(node.args) > 1 else None
            name = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""
            if not is_private(name) or dotted(node.args[0])[0] in ("self", "aten"):
                continue
        else:
            continue
        if name in OF_PYTORCH or name not in own | OF_PYTHON:
            yield f"{node.lineno}: {name} of another object"


def assignments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Attributes of what comes from PyTorch that a module assigns to or deletes."""
    known = of_torch(tree)
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)) and dotted(node)[0] in known:
            yield node.lineno, ".".join(dotted(node))


def replaces(tree: ast.Module) -> bool:
    """Whether a module replaces attributes that are named at run time."""
    of_classes = {id(n) for c in nodes(tree) if isinstance(c, ast.ClassDef) for n in ast.walk(c)}
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            called = ".".join(dotted(node.func))
            if called in ("patched", "patch.object", "mock.patch.object"):
                return True
            if called in ("setattr", "delattr") and id(node) not in of_classes:
                return True
        if isinstance(node, ast.AnnAssign) and "Change" in ast.unparse(node.annotation).split("["):
            return True
    return False


def test_private_names_come_from_the_room() -> None:
    own = own_names()
    wrong = [
        f"{source.name}:{found}"
        for source in outside()
        for found in (*private_imports(source.tree), *private_attributes(source.tree, own))
    ]
    assert wrong == [], "take it from loadmaster.executor.torch_private, which says why it is needed"


def test_attributes_of_torch_are_set_in_the_room() -> None:
    found = {(source.name, name) for source in outside() for _, name in assignments(source.tree)}
    assert found == SETS_TORCH.keys()


def test_what_replaces_attributes_is_listed() -> None:
    pytest.importorskip("torch")
    from loadmaster.executor.torch_private.patches import REPLACED

    listed = {f"loadmaster.executor.{one.by}" for one in REPLACED}
    found = {source.name for source in outside() if of_torch(source.tree) and replaces(source.tree)}
    assert found - listed == REPLACES.keys()


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._inductor import config",
        "from torch.utils import _pytree",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "import torch; torch._C._f()",
        "def f(x): return x._cdata",
        "def f(x): return getattr(x, '_local_tensor', None)",
    ],
)
def test_a_private_name_is_found(line: str) -> None:
    tree = ast.parse(line)
    assert [*private_imports(tree), *private_attributes(tree, own=set())]


def test_an_assignment_is_found() -> None:
    assert [*assignments(ast.parse("import torch.distributed as dist\ndist.P2POp.__init__ = print"))]
