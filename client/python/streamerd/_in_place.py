# SPDX-License-Identifier: Apache-2.0
"""load_into(generation=): the tensors that a module has get the contents of a resident model.

All that can be refused is refused before the first byte is copied. What fails nevertheless, in a hook of the module or
in torch, leaves the module partly updated, and the error says so.
"""

from __future__ import annotations

import traceback
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from ._model import Model
from ._publication import PARAMETER
from ._publish import Item, Storage, entry_of, extent_of, require_plain, storages_of, view_of
from .errors import FailedError, InvalidError, UnsupportedError

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]


def copy_into(module: torch.nn.Module, model: Model[Any]) -> None:
    """Copies the tensors that the module and the model have by the same name."""
    import torch

    given: Tensors = model.state_dict()
    state = module.state_dict(keep_vars=True).items()
    targets = {name: tensor for name, tensor in state if name in given and isinstance(tensor, torch.Tensor)}
    for name, target in targets.items():
        _require_writable(name, target)
    _require_shapes(targets, given)
    _require_convertible(targets, given)
    _require_mapped_for_writing(targets)
    for storage in storages_of([Item(name, target, PARAMETER, 0, None, None) for name, target in targets.items()]):
        _require_one_content(storage, given, model)
    load_state(module, given, f"generation {model.generation} of {model.name}")


def load_state(module: torch.nn.Module, given: Tensors, what: str, assign: bool = False) -> Any:
    """load_state_dict(), which goes on with the next tensor where one fails."""
    try:
        return module.load_state_dict(given, strict=False, assign=assign)
    except Exception as e:
        why = " ".join(str(e).split())
        raise FailedError(f"load_into: the module is partly updated: {what}: {type(e).__name__}: {why}") from e


def release_frames(error: BaseException | None) -> None:
    """Forgets the local variables of the calls that have failed: an exception that is kept would keep tensors by them,
    and so a lease."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _require_writable(name: str, target: torch.Tensor) -> None:
    import torch

    require_plain(f"load_into: {name}", target)
    if target.is_inference() and not torch.is_inference_mode_enabled():
        raise InvalidError(f"load_into: {name} was made in inference mode, and is not writable outside it")
    if _overlaps_itself(target):
        shape, strides = list(target.shape), list(target.stride())
        raise InvalidError(f"load_into: {name} has elements that share memory: {shape} with strides {strides}")


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may lie at one place, as in an expanded tensor."""
    last = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= last:
            return tensor.numel() > 0
        last += (size - 1) * stride
    return False


def _require_shapes(targets: Tensors, given: Tensors) -> None:
    differ = [
        f"{name}: {list(given[name].shape)} resident, {list(target.shape)} in the module"
        for name, target in targets.items()
        if target.shape != given[name].shape
    ]
    if differ:
        raise InvalidError(f"load_into: shapes differ: {'; '.join(differ[:5])}")


def _require_convertible(targets: Tensors, given: Tensors) -> None:
    """Values keep their kind (complex, real, integer, bool), and torch can convert them, which is tried."""
    import torch

    tried = set()
    for name, target in targets.items():
        source = given[name].dtype
        pair = source, target.dtype, target.device, target.is_contiguous()
        if pair in tried:
            continue
        tried.add(pair)
        what = f"load_into: {name}: {source} cannot be converted to {target.dtype}".replace("torch.", "")
        if source != target.dtype and not torch.can_cast(source, target.dtype):
            raise InvalidError(what)
        square = torch.empty(2, 2, dtype=target.dtype, device=target.device)
        try:
            (square if target.is_contiguous() else square.t()).copy_(torch.empty(2, 2, dtype=source))
        except RuntimeError as e:
            raise UnsupportedError(f"{what}: {e}") from None


def _require_mapped_for_writing(targets: Tensors) -> None:
    """A write to other memory, as that of a model which was opened with shared=True, would end the process."""
    with open("/proc/self/maps") as maps:
        ranges = [line.split(maxsplit=2)[:2] for line in maps]
    begins = [int(addresses.partition("-")[0], 16) for addresses, _ in ranges]
    for name, target in targets.items():
        begin, end = extent_of(target)
        if begin == end or target.device.type != "cpu":
            continue
        for address in (begin, end - 1):
            if "w" not in ranges[bisect_right(begins, address) - 1][1]:
                raise InvalidError(f"load_into: {name} lies in memory that is mapped for reading alone")


def _require_one_content(storage: Storage, given: Tensors, model: Model[Any]) -> None:
    """Tensors of the module that share memory have the contents of the one that is copied last: they must be equal."""
    import torch

    first, *others = storage.items
    if not others:
        return
    if all(_layout(item) == _layout(first) for item in others):
        same = len({model.info(item.name)[1:] for item in storage.items}) == 1
    else:
        memory = torch.empty(storage.end - storage.begin, dtype=torch.uint8, device=first.tensor.device)
        views = {item.name: view_of(memory, entry_of(item, 0, storage)) for item in storage.items}
        for name, view in views.items():
            view.copy_(given[name])
        same = all(_bytes(view).equal(_bytes(given[name].to(view))) for name, view in views.items())
    if not same:
        names = ", ".join(sorted(item.name for item in storage.items))
        raise InvalidError(
            f"load_into: {names} share memory in the module, and have different contents in {model.name}"
        )


def _layout(item: Item) -> tuple[Any, ...]:
    tensor = item.tensor
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.reshape(-1).view(torch.uint8)
