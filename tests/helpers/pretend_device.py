"""A second device where there is none: tensors that say they live elsewhere, and refuse to meet those of the host.

Inside `pretend(...)`, tensors made on or moved to the pretended device are `Elsewhere`: they hold a tensor of the host
and compute with it, but one operation on tensors of two places raises, as it would on a GPU. Numbers come back by
`.cpu()`, `.item()` and `.tolist()` alone.

Devices that torch knows (`pretend("xla")`) have no gradients: torch's autograd asks the device's driver, which is not
there, and ends the process. So parameters that are moved must not require any (`frozen`). `add_accelerator` adds a
device with a driver written in Python, on which gradients flow and models train. It stays for the rest of the process
and must come before the first gradient, so tests use it in processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.accelerators import Accelerator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

COPIES = frozenset({"_to_copy", "copy_", "_copy_from"})
"""Operations that may read tensors of one device and write to another."""

RESHAPED = frozenset({"squeeze_", "unsqueeze_", "t_", "transpose_", "resize_", "set_", "as_strided_", "swapaxes_"})
"""Operations that change the shape of a tensor in place, which a wrapper cannot follow."""

FROM_NUMBERS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor})
"""Functions that make tensors of plain numbers; torch writes to the device below what a dispatch mode sees."""


class Elsewhere(Tensor):
    """A tensor that says it lives on the pretended device.

    Attributes:
        held: The tensor of the host that holds its values.
    """

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> Elsewhere:
        assert not isinstance(held, Elsewhere)
        if held.dtype in (torch.float64, torch.complex128) and device.type == "mps":
            raise TypeError(f"{device} has no {held.dtype}.")
        self = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride() if held.layout == torch.strided else None,
            storage_offset=held.storage_offset() if held.layout == torch.strided else None,
            dtype=held.dtype,
            layout=held.layout,
            device=device,
        )
        self.held = held
        return self

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"Tensors of {self.device} are no arrays: `.cpu()` comes first.")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Elsewhere:
        """A leaf like this one: torch would give the copy this one's storage, which is the host's."""
        if id(self) not in memo:
            twin = Elsewhere(self.held.detach().clone(), self.device).requires_grad_(self.requires_grad)
            vars(twin).update({name: value for name, value in vars(self).items() if name != "held"})
            memo[id(self)] = twin
        copied: Elsewhere = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Files hold the tensor of the host."""
        return self.held.detach().__reduce_ex__(protocol)

    def __repr__(self, **options: Any) -> str:
        return f"Elsewhere({self.held!r}, device={str(self.device)!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device | None = None) -> Any:
    """Run an operation on what tensors hold; its results live where its tensors do, or on `device`."""
    name = func.overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else func.__name__
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    away = [value for value in tensors if isinstance(value, Elsewhere)]
    here = [value for value in tensors if not isinstance(value, Elsewhere)]
    wanted = kwargs.get("device")
    home = device or away[0].device
    if name not in COPIES:
        if away and any(value.dim() > 0 for value in here):
            raise RuntimeError(f"Expected all tensors to be on the same device, but {func} got {home} and cpu.")
        if any(value.device != home for value in away):
            raise RuntimeError(f"Expected all tensors to be on one device, but {func} got two.")
    if name in RESHAPED:
        raise NotImplementedError(f"{func} cannot be pretended.")
    if isinstance(kwargs.get("generator"), torch.Generator):
        raise RuntimeError(f"Expected a generator of {home} for {func}, but got one of the host.")
    held = {id(value.held): value for value in away}
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = tree_map_only((Elsewhere, slice), _held, (args, kwargs))
    result = func(*args, **kwargs)
    if name == "copy_":
        return held.get(id(result), result)
    if wanted is not None and torch.device(wanted).type == "cpu":
        return result.clone() if id(result) in held else result
    return tree_map_only(Tensor, lambda value: held[id(value)] if id(value) in held else Elsewhere(value, home), result)


def _held(value: Any) -> Any:
    if isinstance(value, slice):
        return slice(_held(value.start), _held(value.stop), _held(value.step))
    return value.held if isinstance(value, Elsewhere) else value


class _Made(TorchDispatchMode):
    """Catches tensors that are made on the device, or moved to it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Another subclass of tensors looks itself up before anything of it is moved.
        if all(kind is Elsewhere or kind is Tensor for kind in types) and _on(kwargs.get("device"), self._device):
            return _run(func, args, kwargs, self._device)
        return func(*args, **kwargs)


class _Called(TorchFunctionMode):
    """Does by hand what torch would ask the device's driver for.

    Before some functions (`x[...]`, `~x`, `float(x)`, `x.nonzero()`), torch makes the device the current one, which
    raises before anything is done: these run on what tensors hold. So do those that make tensors of numbers.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        others = [kind for kind in types if kind.__torch_function__ is not torch._C._disabled_torch_function_impl]
        if others and torch._C._is_torch_function_enabled():
            with self:  # or what another subclass of tensors calls would go by unseen
                return others[0].__torch_function__(func, types, args, kwargs)
        if func is Tensor.new_tensor:
            kwargs = {"dtype": args[0].dtype, "device": args[0].device} | kwargs
            func, args = torch.tensor, args[1:]
        if func in FROM_NUMBERS and not isinstance(args[0], Tensor) and _on(kwargs.get("device"), self._device):
            # Detached, or a tensor that requires gradients would no longer be a leaf.
            numbers = func(*args, **(kwargs | {"device": "cpu"}))
            return numbers.detach().to(self._device).requires_grad_(numbers.requires_grad)
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if "is not linked with support for" not in str(error):
                raise
        return _run(func, args, kwargs)


def _on(asked: Any, device: torch.device) -> bool:
    return asked is not None and torch.device(asked).type == device.type


@contextmanager
def pretend(kind: str) -> Iterator[torch.device]:
    """While open, there is a device of this kind: `xla` has float64, `mps` refuses it."""
    device = torch.device(kind, 0)
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    # Or modules that are moved would keep their parameters, and with them the class of those.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _Called(device), _Made(device):
            yield device
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


ACCELERATOR = "pretended"
"""Name of the device with a driver."""


def add_accelerator() -> None:
    """Give torch a device with a driver in Python, for `pretend(ACCELERATOR)`, and a backend for its messages.

    As NCCL does for GPUs, the backend sends tensors of this device only.
    """
    _setup_privateuseone_for_python_backend(ACCELERATOR, _Module())
    dist.Backend.register_backend(ACCELERATOR, _messages, devices=[ACCELERATOR])


class _Module(_DummyBackendModule):  # type: ignore[misc]
    """What torch asks a device's module for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def _messages(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    return _Messages(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size)


class _Messages(dist.ProcessGroup):
    """Sends what tensors of the accelerator hold, by Gloo."""

    def __init__(self, gloo: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._gloo = gloo

    def getBackendName(self) -> str:
        return ACCELERATOR

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(ACCELERATOR)]

    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        return self._gloo.allgather(*_sent((outputs, inputs)))

    def gather(self, outputs: Any, inputs: Any, options: Any) -> Any:
        return self._gloo.gather(*_sent((outputs, inputs)), options)

    def allreduce(self, tensors: Any, options: Any = None) -> Any:
        return self._gloo.allreduce(*_sent((tensors,)), options or dist.AllreduceOptions())

    def broadcast(self, tensors: Any, options: Any = None) -> Any:
        return self._gloo.broadcast(*_sent((tensors,)), options)

    def send(self, tensors: Any, rank: int, tag: int) -> Any:
        return self._gloo.send(*_sent((tensors,)), rank, tag)

    def recv(self, tensors: Any, rank: int, tag: int) -> Any:
        return self._gloo.recv(*_sent((tensors,)), rank, tag)

    def barrier(self, opts: Any = None) -> Any:
        return self._gloo.barrier()


def _sent(tensors: Any) -> Any:
    """What tensors hold; those of the host cannot be sent."""
    wrong = [value for value in tree_flatten(tensors)[0] if not isinstance(value, Elsewhere)]
    if wrong:
        raise RuntimeError(f"No backend type associated with device type {wrong[0].device}")
    return tree_map_only(Tensor, _held, tensors)


def frozen(model: nn.Module) -> nn.Module:
    """The model in eval mode, without gradients."""
    return model.eval().requires_grad_(False)


class PretendedAccelerator(Accelerator):
    """Lets Lightning use a device that is not there."""

    def setup_device(self, device: torch.device) -> None:
        pass

    def teardown(self) -> None:
        pass

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return []

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return "pretended"
