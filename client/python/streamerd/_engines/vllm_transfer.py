# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer by the daemon: backend ``streamerd`` of `weight_transfer_config`, both sides.

    trainer    every rank materialises its weights; rank 0 puts them (streamerd.put): a generation of a model
    engine     each worker maps that generation, and loads it between vLLM's layerwise initialisation and finalisation

Nothing but a name, a generation and a digest goes from one to the other. An engine's weights are touched only once the
generation is mapped and has the digest: an update that is refused leaves the engine as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from streamerd._attach import attach
from streamerd._put import Part, put_parts

logger = init_logger("vllm.streamerd")


def _require_text(what: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ValueError(f"{what} must be a text that is not empty, not {value!r}")


# ---- the engine ----


@dataclass
class InitInfo(WeightTransferInitInfo):
    """`socket`: the daemon's; None: the load format's option, else by the package's rule."""

    socket: str | None = None

    def __post_init__(self) -> None:
        _require_text("init_info: socket", self.socket)


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The model that the weights are taken from; `generation` and `digest`: that it must have."""

    model: str
    generation: int | None = None
    digest: str | None = None
    socket: str | None = None

    def __post_init__(self) -> None:
        _require_text("update_info: model", self.model)
        _require_text("update_info: socket", self.socket)


class StreamerdWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """In each worker of an engine."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        extra = getattr(vllm_config.load_config, "model_loader_extra_config", None)
        ours = str(vllm_config.load_config.load_format).startswith("streamerd") and isinstance(extra, dict)
        self._socket: str | None = extra.get("socket") if ours and extra is not None else None
        self._is_initialised = False  # the layers, for the update under way

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self._socket = init_info.socket or self._socket

    def start_weight_update(self) -> None:
        """The layers stay as they are until the first weights are mapped."""
        self._is_initialised = False

    def receive_weights(self, update_info: UpdateInfo) -> None:
        with attach(
            update_info.model,
            generation=update_info.generation,
            digest=update_info.digest,
            socket=update_info.socket or self._socket,
            autostart=False,
        ) as resident:
            if not self._is_initialised:
                initialize_layerwise_reload(self.model)
                self._is_initialised = True
            with disable_mtp_completeness_check():
                self.model.load_weights(resident.stream())
            logger.info("streamerd: weights of %s, generation %d", resident.name, resident.generation)

    def finish_weight_update(self) -> None:
        if self._is_initialised:
            finalize_layerwise_reload(self.model, self.model_config)
        self._is_initialised = False

    def shutdown(self) -> None:
        """Nothing is held between two updates."""


# ---- the trainer ----


@dataclass
class StreamerdTrainerInitInfo(TrainerInitInfo):
    """`model`: the name that the weights are put under; `device`, `timeout`: as for streamerd.put(), which waits."""

    backend: ClassVar[str] = "streamerd"

    model: str
    socket: str | None = None
    device: Any = "cpu"
    timeout: float | str | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_text("model", self.model)


class StreamerdTrainerWeightTransferEngine(TrainerWeightTransferEngine[StreamerdTrainerInitInfo]):
    """In each process of a trainer. All take part in materialising, rank 0 alone talks to the daemon and the engines."""

    init_info_cls = StreamerdTrainerInitInfo

    def __init__(self, init_info: StreamerdTrainerInitInfo, client: VLLMWeightSyncClient, source: WeightSource) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self._info = init_info
        self._source = source

    @classmethod
    def trainer_init(
        cls,
        init_info: StreamerdTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> StreamerdTrainerWeightTransferEngine:
        if source is None:
            raise ValueError("weight transfer by streamerd requires a WeightSource")
        if source.held_names() is not None:
            raise ValueError("weight transfer by streamerd requires a source that yields every weight on rank 0")
        made = cls(init_info, client, source)
        if made.is_sender:
            client.init_weight_transfer_engine({} if init_info.socket is None else {"socket": init_info.socket})
        return made

    def send_weights(self) -> None:
        """Puts a generation, and lets the engines take it. They serve until it is complete."""
        if not self.is_sender:
            for _ in self._source:
                pass
            return
        parts = [
            Part(meta.name, str(meta.dtype).removeprefix("torch."), meta.dtype.itemsize, tuple(meta.shape))
            for meta in self._source.metadata()
        ]
        weights = iter(self._source)
        info = self._info
        try:
            model = put_parts(
                parts, self._values(weights, parts), info.model, device=info.device, metadata=info.metadata, wait=True,
                timeout=info.timeout, socket=info.socket,
            )  # fmt: skip
        finally:
            for _ in weights:  # after a failure: the other ranks materialise all of them
                pass
        with model:
            update = {"model": info.model, "generation": model.generation, "digest": model.digest}
            self.client.start_weight_update()
            self.client.update_weights(update if info.socket is None else {**update, "socket": info.socket})
            self.client.finish_weight_update()

    @staticmethod
    def _values(weights: Iterator[tuple[str, torch.Tensor]], parts: list[Part]) -> Iterator[torch.Tensor]:
        for part, (name, tensor) in zip(parts, weights, strict=True):
            if name != part.name:
                raise RuntimeError(f"the source yields {name!r} where its metadata has {part.name!r}")
            yield tensor
