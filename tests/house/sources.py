"""Parse Headgate's own modules, each once for all rules about them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"
ALL = sorted(SOURCE.rglob("*.py"))
MODULES = [p for p in ALL if "ansible_plugins" not in p.parts]
"""Ansible dictates the form of its plugins."""
WRITTEN = [p for p in MODULES if not p.stem.endswith(("_pb2", "_pb2_grpc"))]
"""Modules that are not generated."""
TOYS = sorted(
    path
    for path in (SOURCE.parents[1] / "tests/integration/adding").glob("*.py")
    if not path.stem.startswith(("test_", "__"))
)
"""Modules that the pages below `docs/how-to/add` tell people to copy into the product."""
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Facts(NamedTuple):
    """Hold the facts that the rules need of one module; its tree is large and is not stored."""

    functions: list[tuple[str, int, int]]
    """Name, lines, depth of nesting."""
    cancelling: set[str]
    """Coroutine functions that cancel something and gather something."""
    classes: list[tuple[str, int]]
    """Name, public methods."""
    top_classes: list[str]
    """Names of the classes outside of all others."""
    defined: list[str]
    """Names that the module itself defines, without those that a decorator registers elsewhere."""
    imports: set[str]
    """Packages at the top."""
    import_lines: int
    strings: list[tuple[int, str]]
    """Line and text of each string literal."""
    attributes: set[str]
    """Attributes that are read, set or deleted."""
    fields: set[str]
    """Fields of the classes: declared in a class, or set on `self`."""
    written: list[tuple[int, str, str]]
    """Line, expression and name of each attribute that is set or deleted on another object than `self`."""
    mutable: list[tuple[str, int]]
    """Name of each class that is not frozen, and the number of its declared fields."""
    reads: set[str]
    """Attributes and names that are read."""
    names: list[str]
    """Names that are given to values, arguments, functions and classes, with the number of definitions."""
    anys: int
    """Uses of `Any`."""
    docstrings: list[tuple[str, str]]
    """Qualified name and docstring of each class and function that has one."""


def name(path: Path) -> str:
    """Return the path of a module below the package."""
    return str(path.relative_to(SOURCE))


@cache
def facts(path: Path) -> Facts:
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    return Facts(
        functions=[(n.name, _lines(n), _depth(n)) for n in nodes if isinstance(n, FUNCTION)],
        cancelling={
            n.name for n in nodes if isinstance(n, ast.AsyncFunctionDef) and {"cancel", "gather"} <= _called(n)
        },
        classes=[(n.name, _public_methods(n)) for n in nodes if isinstance(n, ast.ClassDef)],
        top_classes=[n.name for n in tree.body if isinstance(n, ast.ClassDef)],
        defined=list(_defined(tree)),
        imports=set(_imported(nodes)),
        import_lines=sum(_lines(n) for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)),
        strings=[(n.lineno, n.value) for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)],
        attributes={n.attr for n in nodes if isinstance(n, ast.Attribute)},
        fields=set(_fields(nodes)),
        written=[(n.lineno, ast.unparse(n), n.attr) for n in _set_attributes(nodes) if not _is_own(n)],
        mutable=[(n.name, len(_declared(n))) for n in nodes if isinstance(n, ast.ClassDef) and not _is_frozen(n)],
        reads=set(_read(nodes)),
        names=list(_given(nodes)),
        anys=sum(isinstance(n, ast.Name) and n.id == "Any" for n in nodes),
        docstrings=list(_docstrings(tree, "")),
    )


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _called(function: ast.AST) -> set[str]:
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {func.attr for func in calls if isinstance(func, ast.Attribute)}


def _depth(node: ast.AST, depth: int = 0) -> int:
    nests = ast.For | ast.AsyncFor | ast.While | ast.If | ast.With | ast.AsyncWith | ast.Try
    deepest = depth
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                chained = isinstance(node, ast.If) and field == "orelse" and isinstance(child, ast.If)
                deepest = max(deepest, _depth(child, depth + (isinstance(child, nests) and not chained)))
    return deepest


def _public_methods(node: ast.ClassDef) -> int:
    return sum(isinstance(n, FUNCTION) and not n.name.startswith("_") for n in node.body)


def _declared(node: ast.ClassDef) -> list[str]:
    return [n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]


def _is_frozen(node: ast.ClassDef) -> bool:
    """Return whether nobody sets the fields of a class: it is frozen, or only declares what others have."""
    words = [ast.unparse(one) for one in (*node.decorator_list, *node.keywords)]
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    return any("frozen=True" in one for one in words) or bool(bases & {"NamedTuple", "Protocol", "TypedDict"})


def _set_attributes(nodes: list[ast.AST]) -> list[ast.Attribute]:
    return [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store | ast.Del)]


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _fields(nodes: list[ast.AST]) -> Iterator[str]:
    yield from (n.attr for n in _set_attributes(nodes) if _is_own(n))
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from _declared(node)


def _imported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Import():
                yield from (alias.name.split(".")[0] for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield module.split(".")[0]


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.FunctionDef(name=name, decorator_list=[]) | ast.AsyncFunctionDef(name=name, decorator_list=[]):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def _read(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()) | ast.Name(id=name, ctx=ast.Load()):
                yield name


def _given(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def _docstrings(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        if isinstance(child, ast.ClassDef | FUNCTION):
            if text := ast.get_docstring(child):
                yield f"{prefix}{child.name}", text
            yield from _docstrings(child, f"{prefix}{child.name}.")
        else:
            yield from _docstrings(child, prefix)
