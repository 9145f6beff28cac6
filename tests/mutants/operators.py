"""Small mistakes in a source file, one at a time: the mutants that the tests are to reject.

Left alone: annotations, docstrings, decorators, imports, what is logged, the words of an error.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

_ARITHMETIC: dict[type, tuple[type, str]] = {
    ast.Add: (ast.Sub, "- for +"),
    ast.Sub: (ast.Add, "+ for -"),
    ast.Mult: (ast.Div, "/ for *"),
    ast.Div: (ast.Mult, "* for /"),
    ast.FloorDiv: (ast.Div, "/ for //"),
    ast.Pow: (ast.Mult, "* for **"),
    ast.BitOr: (ast.BitAnd, "& for |"),
    ast.BitAnd: (ast.BitOr, "| for &"),
}
_COMPARISON: dict[type, tuple[type, str]] = {
    ast.Lt: (ast.LtE, "<= for <"),
    ast.LtE: (ast.Lt, "< for <="),
    ast.Gt: (ast.GtE, ">= for >"),
    ast.GtE: (ast.Gt, "> for >="),
    ast.Eq: (ast.NotEq, "!= for =="),
    ast.NotEq: (ast.Eq, "== for !="),
    ast.Is: (ast.IsNot, "is not for is"),
    ast.IsNot: (ast.Is, "is for is not"),
    ast.In: (ast.NotIn, "not in for in"),
    ast.NotIn: (ast.In, "in for not in"),
}
_NOT_LOOKED_INTO = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)
_NOT_LOOKED_AT = {"annotation", "returns", "decorator_list", "bases"}


LONGEST = 80  # what is changed is shown with <= 80 letters


@dataclass(frozen=True)
class Mutant:
    """One change; (spot, way) is where `mutated` makes it."""

    line: int
    lines: tuple[int, int]  # from where its statement begins to where it ends itself
    text: str
    was: str
    change: str
    spot: int
    way: int
    again: int = 0  # how many before it in the file read the same

    @property
    def key(self) -> str:
        """What it is known by while its file is edited elsewhere."""
        same = f" | {self.again + 1}" if self.again else ""
        return f"{self.text} | {self.was} | {self.change}{same}"


def mutants(source: str) -> list[Mutant]:
    """Return all mutants of a source file, in the order of its lines.

    >>> [mutant.key for mutant in mutants("def f(a, b):\\n    return a - b")]
    ['return a - b | return a - b | None returned', 'return a - b | a - b | + for -']
    >>> [mutant.key for mutant in mutants("a = f(0, 0)")]
    ['a = f(0, 0) | 0 | 1', 'a = f(0, 0) | 0 | 1 | 2']
    """
    lines = source.splitlines()
    found = []
    for spot, (node, _, statement) in enumerate(_places(ast.parse(source))):
        for way, (change, _) in enumerate(_variants(node)):
            text = lines[node.lineno - 1].strip()
            reach = (statement.lineno, node.end_lineno or node.lineno)
            was = " ".join((ast.get_source_segment(source, node) or "").split())[:LONGEST]
            found.append(Mutant(node.lineno, reach, text, was, change, spot, way))
    seen: Counter[str] = Counter()
    numbered = []
    for mutant in sorted(found, key=lambda mutant: (mutant.line, mutant.spot, mutant.way)):
        numbered.append(replace(mutant, again=seen[mutant.key]))
        seen[mutant.key] += 1
    return numbered


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Return the tree of a source file with one change in it."""
    tree = ast.parse(source)
    node, parent, _ = list(_places(tree))[mutant.spot]
    other = ast.copy_location(_variants(node)[mutant.way][1], node)
    for name, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, name, other)
        elif isinstance(value, list):
            setattr(parent, name, [other if item is node else item for item in value])
    return ast.fix_missing_locations(tree)


def function_of(source: str, mutant: Mutant) -> str:
    """Return the outermost function or method whose body holds a mutant; "" if it is in none.

    >>> source = "class A:\\n    def f(self, a=1):\\n        return a + 2"
    >>> [(mutant.was, function_of(source, mutant)) for mutant in mutants(source)]
    [('1', ''), ('return a + 2', 'A.f'), ('a + 2', 'A.f'), ('2', 'A.f')]
    """
    tree = ast.parse(source)
    node = list(_places(tree))[mutant.spot][0]
    for name, function in _functions(tree):
        if any(node is inner for line in function.body for inner in ast.walk(line)):
            return name
    return ""


def _functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Go through the functions of a module and the methods of its classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield within + child.name, child
        else:
            inside = f"{within}{child.name}." if isinstance(child, ast.ClassDef) else within
            yield from _functions(child, inside)


Place = tuple[ast.stmt | ast.expr, ast.AST, ast.stmt]  # a node, its parent, its statement


def _places(node: ast.AST, statement: ast.stmt | None = None) -> Iterator[Place]:
    """Go through what may be changed."""
    for name, value in ast.iter_fields(node):
        if name in _NOT_LOOKED_AT:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            inner = child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.stmt | ast.expr) and inner is not None:
                yield child, node, inner
            if not isinstance(child, _NOT_LOOKED_INTO):
                yield from _places(child, inner)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        words = ast.unparse(node.value)
        return isinstance(node.value, ast.Constant) or words.startswith(("log.", "yield"))
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _variants(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Return what a node might have been by mistake, each with a name for the change."""
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            other, change = _ARITHMETIC[type(op)]
            return [(change, _with(node, op=other()))]
        case ast.Compare(ops=ops):
            changes = [(place, *_COMPARISON[type(op)]) for place, op in enumerate(ops)]
            return [
                (change, _with(node, ops=[*ops[:place], other(), *ops[place + 1 :]]))
                for place, other, change in changes
            ]
        case ast.BoolOp(op=ast.And()):
            return [("or for and", _with(node, op=ast.Or()))]
        case ast.BoolOp():
            return [("and for or", _with(node, op=ast.And()))]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return [("without its sign", operand)]
        case ast.Constant(value=bool() as value):
            return [(str(not value), ast.Constant(not value))]
        case ast.Constant(value=int() as value):
            return [(str(value + 1), ast.Constant(value + 1))]
        case ast.Constant(value=float() as value):
            return [(str(2 * value or 1.0), ast.Constant(2 * value or 1.0))]
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            plain = not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp)
            negated = ast.UnaryOp(ast.Not(), test)
            return [("negated", _with(node, test=negated))] if plain else []
        case ast.Raise() | ast.Expr(value=ast.Call()) | ast.Break() | ast.Continue():
            return [("left out", ast.Pass())]
        case ast.Return(value=ast.Constant(value=bool() | None)):
            return []  # a bool is changed itself, and None is as false as False
        case ast.Return(value=ast.expr()):
            return [("None returned", ast.Return(ast.Constant(None)))]
        case _:
            return []


def _with(node: ast.AST, **changes: object) -> ast.AST:
    other = deepcopy(node)
    for name, value in changes.items():
        setattr(other, name, value)
    return other
