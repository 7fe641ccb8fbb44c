"""A ViT with prompts in every block: trained through all blocks, of which only the last ones have trained weights."""

from __future__ import annotations

from itertools import chain

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ctxgcd.errors import UserError
from ctxgcd.models.backbone import Backbone, VitTrunk
from ctxgcd.models.heads import WEIGHT_STD

# Tokens in a pass through the blocks. On a CPU, activations of more tokens leave the cache; on a GPU, a pass of these
# is as fast for each token as a larger one.
CPU_TOKENS, CUDA_TOKENS = 1024, 16384
# Bytes that a block stores for the gradient, for each value of a token, in float32 and under autocast to bfloat16; and
# the most that is stored, on a CPU and as a share of a GPU's free memory. Beyond it, activations are computed again.
STORED, STORED_HALF = 72, 40
IN_MEMORY, OF_FREE_MEMORY = 4 * 2**30, 0.6


class Prompted(nn.Module):
    """What trains: prompts [depth, prompts, d], and the last blocks. Prompts start normal with deviation 0.02."""

    def __init__(
        self, blocks: nn.Sequential, depth: int, prompts: int, dim: int, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.prompts = nn.Parameter(torch.empty(depth, prompts, dim).normal_(std=WEIGHT_STD, generator=generator))
        self.blocks = blocks


class PromptTail(nn.Module):
    """All blocks and the frozen final norm: tokens [b, t, d] -> the CLS row and the mean of the first prompt rows.

    Before each block, its prompts replace those of the block before, between the CLS token and the other tokens. The
    position embedding of a prompt is 0. Frozen blocks and the norm are those of the trunk's model, which moves them to
    the device; they are not parts of this module, so that checkpoints do not contain them.

    Source: PromptCAL (CVPR 2023) and its released code.
    """

    def __init__(
        self, net: VisionTransformer, trained: int, prompts: int, used: int, *, generator: torch.Generator
    ) -> None:
        """trained: number of last blocks that train; used: number of first prompts whose outputs are averaged."""
        super().__init__()
        depth = len(net.blocks)
        self.frozen = (net.blocks[: depth - trained], net.norm)
        last = net.blocks[depth - trained :].requires_grad_(True)
        self.trained = Prompted(last, depth, prompts, net.embed_dim, generator=generator)
        self.used = used

    def forward(self, tokens: Tensor) -> Tensor:
        return self.both(tokens)[0]

    def both(self, tokens: Tensor, trained: Prompted | None = None) -> tuple[Tensor, Tensor]:
        """Return CLS rows [b, d] and mean prompt rows [b, d]; trained: of a teacher, in place of the own prompts."""
        own = self.trained if trained is None else trained
        prompted = tokens.shape[1] + own.prompts.shape[1]
        images = max(1, (CPU_TOKENS if tokens.device.type == "cpu" else CUDA_TOKENS) // prompted)
        parts = tokens.split(images)
        trains = torch.is_grad_enabled() and own.prompts.requires_grad
        if trains and not self._stores(len(tokens), prompted, tokens.device):
            found = [
                checkpoint(self._through, part, own, use_reentrant=False, preserve_rng_state=False) for part in parts
            ]
        else:
            found = [self._through(part, own) for part in parts]
        cls, prompts = zip(*found, strict=True)
        return torch.cat(cls), torch.cat(prompts)

    def _through(self, tokens: Tensor, trained: Prompted) -> tuple[Tensor, Tensor]:
        blocks, norm = self.frozen
        cls, others = tokens[:, :1], tokens[:, 1:]
        for block, prompts in zip(chain(blocks, trained.blocks), trained.prompts, strict=True):
            tokens = block(torch.cat([cls, prompts.expand(len(cls), -1, -1), others], dim=1))
            cls, others = tokens[:, :1], tokens[:, 1 + len(prompts) :]
        rows = norm(tokens[:, : 1 + self.used])
        return rows[:, 0], rows[:, 1:].mean(dim=1)

    def _stores(self, images: int, tokens: int, device: torch.device) -> bool:
        """Return whether the activations of a pass with gradients fit beside those that are stored already."""
        depth, _, dim = self.trained.prompts.shape
        each = STORED_HALF if torch.is_autocast_enabled(device.type) else STORED
        limit: float = IN_MEMORY
        if device.type == "cuda":
            unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            limit = OF_FREE_MEMORY * (torch.cuda.mem_get_info(device)[0] + unused)
        return images * tokens * depth * dim * each <= limit


def prompted(net: nn.Module, trained: int, prompts: int, used: int, *, generator: torch.Generator) -> Backbone:
    """Cut a frozen ViT into its embedding and all of its blocks, with prompts in each block.

    trained: number of last blocks whose weights train; prompts: number in each block; used: number of first prompts
    whose final rows are averaged. Raises UserError for a model that has no CLS token or has rotary positions.
    """
    if not isinstance(net, VisionTransformer) or not net.has_class_token or trained > len(net.blocks):
        raise UserError(
            f"{type(net).__name__} cannot be prompted with tail_blocks {trained}: a ViT with a CLS token and learned "
            "positions takes up to its number of blocks; choose another backbone or fewer blocks"
        )
    tail = PromptTail(net, trained, prompts, used, generator=generator)
    return Backbone(VitTrunk(net, 0), tail, net.embed_dim)
