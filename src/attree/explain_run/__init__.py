"""The command `attree explain`: explanations of a finished run, as a dataset, figures and a page.

For other schedulers than Ray, a call's parts can be written one by one: `missing_parts` and `write_part`.
"""

from attree.explain_run.write_part import ExplainCall, WrittenPart, missing_parts, write_part

__all__ = ["ExplainCall", "WrittenPart", "missing_parts", "write_part"]
