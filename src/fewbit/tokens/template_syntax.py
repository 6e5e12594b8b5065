"""Rewrites a parsed template so that everything that costs goes through the environment.

Jinja's sandbox sees calls, filters and arithmetic. It does not see rounds of loops, `~`, slices,
comparisons and dictionary keys: these become calls of the environment here, which no template can
name.
"""

from __future__ import annotations

from typing import Any, TypeVar

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from fewbit.errors import TemplateError

_BodyT = TypeVar("_BodyT", nodes.Macro, nodes.CallBlock, nodes.Block, nodes.For)


class Metering(NodeTransformer):
    """The rewriting; `visit` a Template with it, then give the tree its environment again."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        """Count every round, and every test of `for ... if`."""
        result = self._count_body(node)
        if result.test is not None:
            test = nodes.And(_hook("tick", [nodes.Const(0)]), result.test)
            result.test = test.set_lineno(node.lineno)
        return result

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802
        """Count every run of a macro's body."""
        return self._count_body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:  # noqa: N802
        """Count every run of a call block's body."""
        return self._count_body(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Block:  # noqa: N802
        """Count every run of a block's body."""
        return self._count_body(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """`a ~ b`."""
        self.generic_visit(node)
        return _hook("concatenate", node.nodes).set_lineno(node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """`a[b:c]`; plain subscripts reach the environment already."""
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [
            part or nodes.Const(None) for part in (node.arg.start, node.arg.stop, node.arg.step)
        ]
        return _hook("take_slice", [node.node, *bounds]).set_lineno(node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        """`==`, `<`, `in` and the like look at everything inside both sides."""
        self.generic_visit(node)
        node.expr = _weighed(node.expr)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:  # noqa: N802
        """A dictionary's key is hashed."""
        self.generic_visit(node)
        node.key = _weighed(node.key)
        return node

    def visit_Include(self, node: nodes.Node) -> nodes.Node:  # noqa: N802
        """Other templates do not exist."""
        raise TemplateError(
            f"The chat template uses {type(node).__name__.lower()} in line {node.lineno}; "
            "a chat template is one text on its own."
        )

    visit_Import = visit_FromImport = visit_Extends = visit_Include  # noqa: N815

    def _count_body(self, node: _BodyT) -> _BodyT:
        # Text inside macros and set blocks is gathered where the rendering loop does not see it.
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        tick = nodes.ExprStmt(_hook("tick", [nodes.Const(written)]))
        node.body = [tick.set_lineno(node.lineno), *node.body]
        return node


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks an assistant's text for training.

    The text is rendered as it is, in a scope of its own as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Read one such block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("render_body"), [], [], body).set_lineno(line)

    def render_body(self, caller: Any) -> str:
        """Return the block's text."""
        text: str = caller()
        return text


def _hook(name: str, arguments: list[Any]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _weighed(expression: nodes.Expr) -> nodes.Expr:
    if isinstance(expression, nodes.Const):
        return expression
    call = _hook("weighed", [expression])
    call.set_lineno(expression.lineno)
    return call
