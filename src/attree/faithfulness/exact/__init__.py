"""Attention reduction by exact updates of the rows that change, for any model whose forward can be run on rows.

One forward pass is recorded. Reducing an edge changes few nodes in each attention layer, and what stands between the
layers (activations, norms in eval mode, skips, jumping knowledge, heads) is computed node by node. So the model's own
`forward` is run again, not on the graph, but on the *rows* (reduced edge, node) that change, of many reduced edges at
once; each attention convolution in it is replaced by one that takes the rows' inputs and returns the rows' outputs.

With out the recorded output of a row before bias and skips, alpha_c and x_c the recorded weight and value of entry c,
x'_c its new value and beta_c = exp(new score - log normaliser),

    out' = (out - sum_c alpha_c x_c + sum_c beta_c x'_c) / (1 - sum_c alpha_c + sum_c beta_c)

over the changed entries c alone: O(channels) each. That holds where the node's own features are as they were; with
them every score of a row changes, and the row is computed anew.

*The self-loop invariant.* Rows are followed along the looped graph, in every layer, whatever edges the layer itself
has: a node may reach itself by a self-loop, a skip connection or a root weight, and this covers all three. From the
second layer on, the destination of the reduced edge is therefore recomputed in full, and no row that is merely updated
has the reduced edge among its entries.

*Several types.* Rows are (reduced edge, node of the union of types). A tensor of one type has the rows of that type, in
their order. A call has the edges of one relation, or of all (HGT), with numbers of its own (`layer_graph`), and no
self-loops to follow: rows whose own features changed, and those that the reduced edge enters, are recomputed.

Words:

- *recording*: one forward pass with everything that updates need; *trace*: the same for one call of a convolution.
- *call*: one call of a convolution; a convolution that is called twice has two. *stage*: what a call returned, or what
  entered the model. Stages that meet in an operation form a *family* and share their rows.
- *row*: a reduced edge and a node. *record*: a row that changes in some call.
- *entry*: an edge that enters a row's node. *sender*: the row of the call before that a changed entry comes from.
- *light*: entries of rows whose own features are unchanged; these rows are updated. *own*: rows whose own features
  changed; these are recomputed.
- *slot*: the number of an entry among all entries of rows that are computed together.

Where to start reading: `reducer` (the engine), `recording` and `trace` (the recorded pass), `stages` (which call feeds
which), `plan`, `ways` and `families` (which rows change), `update` (their new values), `check` with `conv_check` and
`row_check` (what is assumed of a model is checked before the engine is used), `algebra` (the arithmetic of each
convolution; users add their own with `register_algebra`).
"""

from attree.faithfulness.exact.algebra import LayerAlgebra, States, register_algebra

__all__ = ["LayerAlgebra", "States", "register_algebra"]
