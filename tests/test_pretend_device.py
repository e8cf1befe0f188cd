import pytest, torch
from torch import nn
from helpers.pretend_device import Elsewhere, frozen, pretend


@pytest.mark.parametrize("kind", ["xla", "mps"])
def test_basic(kind):
    with pretend(kind) as device:
        x = torch.arange(4, device=device).float()
        assert isinstance(x, Elsewhere) and x.device == device
        y = torch.ones(4)
        with pytest.raises(RuntimeError):
            x + y
        with pytest.raises(RuntimeError):
            y + x
        with pytest.raises(RuntimeError):
            y[x.long()]
        with pytest.raises(TypeError):
            x.numpy()
        import numpy as np

        with pytest.raises(TypeError):
            np.asarray(x)
        assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3, 4]
        assert float(x[2]) == 2 and x[2].item() == 2 and int(x.sum()) == 6 and bool((x >= 0).all())
        z = x.cpu()
        assert type(z) is torch.Tensor and z.numpy().tolist() == [0, 1, 2, 3]
        z += 1
        assert x.tolist() == [0, 1, 2, 3]
        assert torch.tensor([1, 2], device=device).device == device
        assert torch.as_tensor([1, 2], device=device).device == device
        assert torch.as_tensor(y, device=device).device == device
        x[1:].add_(5)
        assert x.tolist() == [0, 6, 7, 8]
        x.copy_(y)
        assert x.tolist() == [1] * 4
        y.copy_(x * 3)
        assert y.tolist() == [3] * 4
        net = frozen(nn.Linear(4, 2)).to(device)
        assert net.weight.device == device and isinstance(net.weight, nn.Parameter)
        assert net(x).device == device
        if kind == "mps":
            with pytest.raises(TypeError):
                x.double()
        torch.cumsum(x, 0, out=torch.empty(5, device=device)[1:])
        print(x)
