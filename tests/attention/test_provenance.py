from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GATConv

from attree.attention import capture_attention
from attree.attention.marked_tensors import Provenance

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


class Counting(TorchDispatchMode):
    """A mode of somebody else's that counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    """Two convolutions; the first may run under a mode of the model's own, the second may fail."""

    def __init__(self, mode: Counting | None = None, fails: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GATConv(3, 4), GATConv(4, 2)
        self.mode, self.fails = mode, fails

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.mode is None:
            x = self.first(x, edge_index)
        else:
            with self.mode:
                x = self.first(x, edge_index).relu()
        return self.second(x, edge_index[:, :0].sum() if self.fails else edge_index)


def test_marks_wait_while_paused_and_go_on_afterwards() -> None:
    x = torch.ones(2)
    with Provenance() as provenance:
        provenance.mark(x, 0)
        provenance.pause()
        assert _get_current_dispatch_mode() is None
        unseen = x + 1
        provenance.resume()
        assert provenance.marks(unseen) == frozenset()
        assert provenance.marks(x * 2) == {0}
    assert _get_current_dispatch_mode() is None


def test_marks_wait_below_a_mode_that_was_opened_later() -> None:
    x = torch.ones(2)
    with Provenance() as provenance:
        provenance.mark(x, 0)
        with Counting() as above:
            provenance.pause()
            assert _get_current_dispatch_mode() is above
            unseen = x + 1
            provenance.resume()
            seen = x + 1
        assert above.operations == 2
        assert provenance.marks(unseen) == frozenset()
        assert provenance.marks(seen) == {0}
    assert _get_current_dispatch_mode() is None


def test_a_model_with_a_mode_of_its_own_is_captured_like_another() -> None:
    mode = Counting()
    with_mode, without = Net(mode), Net()
    captured = capture_attention(with_mode, X, EDGES)
    counted = mode.operations
    assert counted > 0
    with torch.no_grad():
        expected = with_mode(X, EDGES)
    assert mode.operations == 2 * counted  # it sees what it sees outside
    torch.testing.assert_close(captured.output, expected)
    plain = capture_attention(without, X, EDGES)
    torch.testing.assert_close(captured.per_edge()[0], plain.per_edge()[0])


def test_capture_inside_somebody_elses_mode_leaves_that_open() -> None:
    with Counting() as outer:
        captured = capture_attention(Net(), X, EDGES)
        assert _get_current_dispatch_mode() is outer
    torch.testing.assert_close(captured.output, capture_attention(Net(), X, EDGES).output)


@pytest.mark.parametrize("mode", [None, Counting()])
def test_a_convolution_that_fails_leaves_no_mode_open(mode: Counting | None) -> None:
    with pytest.raises(Exception, match=r".+"):
        capture_attention(Net(mode, fails=True), X, EDGES)
    assert _get_current_dispatch_mode() is None
    assert capture_attention(Net(), X, EDGES).num_layers == 2


class Forces(nn.Module):
    """A model that takes gradients in its forward, through a layer that is computed again for them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATConv(3, 4), GATConv(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            hidden = checkpoint(self.first, x, edge_index, use_reentrant=False)
            out = self.second(hidden.relu(), edge_index)
            (self.force,) = torch.autograd.grad(out.sum(), x)
        return out.detach()


def test_a_layer_that_is_computed_again_in_a_backward_pass_leaves_no_mode_open() -> None:
    captured = capture_attention(Forces(), X, EDGES)
    assert captured.num_layers == 2
    assert _get_current_dispatch_mode() is None


class OpensAMode(GATConv):
    """A convolution that opens a mode, which its model closes."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.mode = Counting()
        self.mode.__enter__()
        return super().forward(*args, **kwargs)


class ClosesIt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = OpensAMode(3, 4), GATConv(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index)
        self.first.mode.__exit__(None, None, None)
        return self.second(x.relu(), edge_index)


def test_modes_that_cross_a_convolutions_end_are_closed_in_their_order() -> None:
    assert capture_attention(ClosesIt(), X, EDGES).num_layers == 2
    assert _get_current_dispatch_mode() is None
