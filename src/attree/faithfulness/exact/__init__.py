"""Attention reduction by exact updates of the rows that change, for any model whose forward can run on single rows.

One forward pass is recorded. Reducing an edge changes few nodes in each attention layer, and the operations between the
layers (activations, norms in eval mode, skips, jumping knowledge, heads) treat each node separately. So the model's own
`forward` runs again, but only on the *rows* (reduced edge, node) that change, for many reduced edges at once. Each
attention convolution is replaced by one that takes the rows' inputs and returns the rows' outputs.

Notation: `out` is the recorded output of a row before bias and skips, alpha_c and x_c are the recorded weight and value
of entry c, x'_c is its new value and beta_c = exp(new score - log normaliser). Then

    out' = (out - sum_c alpha_c x_c + sum_c beta_c x'_c) / (1 - sum_c alpha_c + sum_c beta_c)

where the sums run over the changed entries c only: O(channels) each. The formula holds if the node's own features are
unchanged. If they changed, every score of the row changes, and the row is recomputed in full.

*Self-loop rule.* In every layer, rows are followed along the graph with self-loops, even if the layer has none. A node
can reach itself through a self-loop, a skip connection or a root weight, and this rule covers all three. So from the
second layer on, the destination of the reduced edge is recomputed in full, and no updated row has the reduced edge
among its entries.

*Several node types.* Rows are (variant, node in the union of types). A tensor of one type has the rows of that
type, in their order. A call has the edges of one relation, or of all relations (HGT), with its own numbering
(`layer_graph`), and no self-loops to follow. Rows whose own features changed, and rows that the reduced edge enters,
are recomputed.

*Layers without attention.* Their own `forward` runs on rows; only their `propagate` is replaced (`call_arguments`,
`message_trace`, `message_update`). A sum or mean of messages that read no destination is updated entry by entry; any
other aggregation is recomputed from all entries of a row by the layer's own `propagate`. A few deletions are compared
with deletion from the data (`tried_pairs`). Three things keep their updates about as cheap as those of GAT:

- If messages are multiples of their sources (GCN, SAGE, GIN), sums stay lazy until a linear layer has made their
  features narrow (`lazy_sums`). It is applied to all recorded features once, and to the features of changed rows.
- A layer that reads its nodes' own features after its messages (SAGE's root weight) is run twice: on its input's rows
  until it passes messages, then on its output's rows. Else the rows of all layers would be computed in each layer.
- If weights are normalised by degrees (GCN), deleting an edge (i -> j) also changes all messages that j sends, so the
  rows of j's out-neighbours change, in the first layer too, by the same factor for all edges that enter j. This change
  is computed once, as a *base* from which the rows of these edges start (`Variants`).

*Habits of models.* A model that fails its check is tried once more with what it holds or makes with one row per node
cut to the rows (`node_tables`). A selection of nodes whose outputs it returns (`out[:batch_size]`) is undone, so that
it returns one row per row (`attree.subject.output_selection`). If it returns one row for each edge, the rows of links
take the place of its edges, which only the code after its layers then reads.

Terms:

- *recording*: one forward pass with everything that updates need; *trace*: the same for one call of a convolution.
- *call*: one call of a convolution; a convolution that is called twice has two calls. *stage*: the output of a call, or
  the model's input. Stages that an operation combines form a *family* and share their rows.
- *variant*: the network with one edge reduced, or a base.
- *row*: a variant and a node. *record*: a row that changes in some call.
- *entry*: an edge that enters a row's node. *sender*: the row of the previous call that a changed entry comes from.
- *light* entries: changed entries of rows whose own features are unchanged; these rows are updated. *recomputed*
  rows: rows whose own features changed.
- *slot*: the number of an entry among all entries of the rows that are computed together.

Where to start reading, in this order:

1. `exact_engine`: the engine, which runs everything below.
2. `recording`: the recorded pass, with a trace of each call: `attention_update` (with attention), `message_trace`
   (without). `stages` finds which call feeds which, `layer_graph` the edges of a call.
3. `reduction_plan`, `changed_rows`, `call_plans`: which rows an edge changes in each call.
4. `forward_rows`: the rows that the model's forward runs on. `attention_update`, `message_update`: their new values.
5. `checks`, `check_samples`: whether a model meets the assumptions, before the engine is used.
6. `convolution_algebra`: the arithmetic of each convolution; users add their own with `register_algebra`.

What models need besides: `call_arguments` (arguments cut to rows), `node_tables` (tables with one row per node),
`lazy_features` and `lazy_sums` (feature rows that are computed when they are read).
"""

from attree.faithfulness.exact.convolution_algebra import LayerAlgebra, States, register_algebra

__all__ = ["LayerAlgebra", "States", "register_algebra"]
