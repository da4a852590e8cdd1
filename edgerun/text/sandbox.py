"""Chat templates as jinja2 programs that can do no harm and cost little.

jinja2's immutable sandbox guards attributes and calls. On top of it, before compiling, the parsed
template is rewritten (:class:`_Rewrite`) so that

- its literals become :class:`~edgerun.text.marked.Marked` text: only these, the roles and the
  names of the model's own tokens are trusted in the prompt;
- every loop body begins with a tick of the budget;
- collections it writes, and ``~``, go through the budget;

and :class:`TemplateEnvironment` admits only listed methods and functions, sends every operator
and filter through the budget, and knows no loader, so ``include``, ``import`` and ``extends`` do
not exist. jinja2's ``Markup`` never arises: prompts are not HTML.

This module imports jinja2; :mod:`edgerun.text.template` imports it only when a template is used.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from edgerun.text.filters import FILTERS
from edgerun.text.limits import MAX_INT_BITS, LimitExceeded, current
from edgerun.text.marked import Marked, concat, mark
from edgerun.text.text_ops import add, call_str_method, format_percent, text_of

__all__ = ["Refusal", "TemplateEnvironment"]

_DATE_WIDTH = re.compile(r"%[^a-zA-Z%]*\d")
_ATTRS_OF_DICT = frozenset(dir(dict))
_METHODS_OF_TEXT = frozenset(x for x in dir(str) if not x.startswith("_"))
_METHODS: dict[type, frozenset[str]] = {
    dict: frozenset(["get", "items", "keys", "values"]),
    list: frozenset(["count", "index"]),
    tuple: frozenset(["count", "index"]),
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


class Refusal(JinjaError):
    """The template called ``raise_exception``."""


class TemplateList(list):  # type: ignore[type-arg]
    """A list written in the template: the one kind it may append to and pop from."""


class _Namespace(Namespace):
    """jinja2's namespace, minus private names and minus a repr that prints what it holds."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attrs = dict(*rest, **kwargs)
        for name in attrs:
            _check_public(name)
        Namespace.__init__(self, attrs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_public(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError("a namespace holds no private names")


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}``: marks answers for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class _Rewrite(NodeTransformer):
    """See the module's docstring. Nodes it makes only name attributes of the environment."""

    def __init__(self, environment: TemplateEnvironment) -> None:
        self.environment = environment
        self.names: dict[str, str] = {}

    def _literal(self, text: str, lineno: int) -> nodes.Node:
        name = self.names.get(text)
        if name is None:
            name = self.names[text] = f"literal_{len(self.names)}"
            setattr(self.environment, name, mark(text))
        return nodes.EnvironmentAttribute(name, lineno=lineno)

    def _through(self, function: str, args: list[Any], lineno: int) -> nodes.Call:
        callee = nodes.EnvironmentAttribute(function, lineno=lineno)
        return nodes.Call(callee, args, [], None, None, lineno=lineno)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        value = node.value
        if isinstance(value, str):
            return self._literal(value, node.lineno)
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise TemplateSyntaxError("a number is too large", node.lineno)
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return self._literal(node.data, node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        node.node = self.visit(node.node)
        if not isinstance(node.arg, nodes.Const):
            node.arg = self.visit(node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        # Operands that are only compared need no marks, lists of them no budget.
        node.expr = self._compared(node.expr)
        for operand in node.ops:
            operand.expr = self._compared(operand.expr)
        return node

    def _compared(self, node: nodes.Expr) -> Any:
        if isinstance(node, nodes.Const):
            return node
        if isinstance(node, (nodes.List, nodes.Tuple)) and all(
            isinstance(x, nodes.Const) for x in node.items
        ):
            return node
        return self.visit(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._through("make_list", [self.generic_visit(node)], node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._through("make", [self.generic_visit(node)], node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" else self._through("make", [node], node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._through("make_text", list(node.nodes), node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.ExprStmt(self._through("tick", [], node.lineno), lineno=node.lineno)
        node.body.insert(0, tick)
        return node

    def _absent(self, node: nodes.Node) -> nodes.Node:
        tag = type(node).__name__.lower()
        tag = "autoescape" if "context" in tag else tag
        raise TemplateSyntaxError(f"chat templates have no {tag!r}", node.lineno)

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _absent
    visit_Block = visit_ScopedEvalContextModifier = visit_EvalContextModifier = _absent


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """One per template: its literals live here, where generated code finds them."""

    concat = staticmethod(lambda parts: _make_text(*parts))  # macros, blocks of {% set %}
    intercepted_binops = frozenset(_ARITHMETIC)

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            optimized=False,  # nothing of the template runs before there is a budget
            cache_size=0,
        )
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)

        def strftime_now(pattern: str) -> str:
            if len(pattern) > 200 or _DATE_WIDTH.search(pattern):
                raise LimitExceeded("its date format is not one a prompt can need")
            return clock().strftime(pattern)

        self.globals = {
            "range": safe_range,
            "dict": dict,
            "namespace": _Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _refuse,
            "strftime_now": strftime_now,
        }
        self._functions = {id(f) for f in self.globals.values()}
        self._functions |= {id(f) for f in (_make, _make_list, _make_text)}
        # Named by the nodes that _Rewrite makes.
        self.make, self.make_list, self.make_text = _make, _make_list, _make_text
        self.tick = _TICK

    def rewritten(self, source: str) -> nodes.Template:
        """Parse ``source``. Raises ``TemplateSyntaxError``, or ``RecursionError`` if too deep."""
        tree: nodes.Template = _Rewrite(self).visit(self.parse(source))
        return tree

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _ATTRS_OF_DICT:  # nearly every lookup
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if attribute in _METHODS_OF_TEXT and isinstance(obj, str):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        result = super().getitem(obj, argument)
        if isinstance(argument, slice):
            if isinstance(result, (list, tuple)):
                current().weigh(result)
            elif isinstance(result, str):
                current().charge(len(result))
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is TemplateList and attr in ("append", "pop"):
            return True
        return bool(super().is_safe_attribute(obj, attr, value))

    def wrap_str_format(self, value: Any) -> None:
        return None  # call() below sends str.format to our own

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.tick()
        # jinja2's own, for functions that take the context: none here does.
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        kind = type(__obj)
        if kind is MethodType or kind is BuiltinMethodType:
            return __self._call_method(__context, __obj, args, kwargs)
        if __obj is _TICK:
            return None
        if isinstance(__obj, (Macro, LoopContext)):
            if getattr(__obj, "catch_varargs", True) or getattr(__obj, "catch_kwargs", True):
                budget.weigh((*args, *kwargs.values()))  # the macro sees them as a collection
            budget.enter()
            try:
                return __context.call(__obj, *args, **kwargs)
            finally:
                budget.leave()
        if id(__obj) in __self._functions:
            if __obj is Cycler:
                budget.weigh(args)
            result = __obj(*args, **kwargs)
            if isinstance(result, dict):
                budget.weigh(result)
            return result
        if isinstance(__obj, (Joiner, Undefined)):
            return __obj()  # an undefined one raises, saying what it is
        raise SecurityError(f"a {kind.__name__!r} object may not be called")

    def _call_method(self, context: Context, method: Any, args: Any, kwargs: Any) -> Any:
        owner, name = method.__self__, method.__name__
        budget = current()
        if isinstance(owner, str):
            return call_str_method(budget, owner, name, args, kwargs)
        if isinstance(owner, (Cycler, LoopContext)):
            return method(*args, **kwargs)
        if isinstance(owner, TemplateList) and name in ("append", "pop"):
            return budget.append(owner, *args) if name == "append" else owner.pop(*args)
        for kind, names in _METHODS.items():
            if isinstance(owner, kind) and name in names:
                result = method(*args, **kwargs)
                if name in ("items", "keys", "values"):  # a view would hide its weight
                    result = list(result)
                    budget.weigh(result)
                return result
        raise SecurityError(f"method {name!r} of {type(owner).__name__!r} may not be called")

    def call_binop(self, context: Context, op: str, left: Any, right: Any) -> Any:
        budget = current()
        budget.tick()
        if op == "+" and isinstance(left, str) and isinstance(right, str):
            return add(budget, left, right)
        if op == "%" and isinstance(left, str):
            return format_percent(budget, left, right)
        for x in (left, right):
            if isinstance(x, int) and x.bit_length() > MAX_INT_BITS:
                raise LimitExceeded("it made a number too large")
        if op == "*":
            for x, n in ((left, right), (right, left)):
                if isinstance(x, (str, list, tuple)) and isinstance(n, int):
                    budget.charge((len(x) if isinstance(x, str) else 16 * len(x)) * max(n, 0))
                    if isinstance(x, Marked):
                        return x.repeated(n)
        elif op == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > MAX_INT_BITS:
                raise LimitExceeded("it made a number too large")
        elif op == "+" and isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            budget.charge(16 * (len(left) + len(right)))
        result = _ARITHMETIC[op](left, right)
        if isinstance(result, (list, tuple)):
            budget.weigh(result)
        return result


def _refuse(message: Any = "") -> Any:
    raise Refusal(text_of(message))


def _TICK() -> None:
    """Called at the start of each round of a loop; the call itself ticks."""


def _make(value: Any) -> Any:
    current().weigh(value)
    return value


def _make_list(value: list[Any]) -> TemplateList:
    made = TemplateList(value)
    current().weigh(made)
    return made


def _make_text(*values: Any) -> str:
    texts = [text_of(v) for v in values]
    current().charge(sum(map(len, texts)))
    return concat(texts)
