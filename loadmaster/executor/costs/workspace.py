"""Workspace that is known without running the operator. An operator without a formula is taken to need none."""

from __future__ import annotations

from loadmaster.executor.costs.formulas import OperatorFormulas

workspace_formula_bytes = OperatorFormulas("workspace formula", 0)
"""Bytes that an operator takes while it runs."""

register_workspace = workspace_formula_bytes.register
