"""Medusa-style heads: head k predicts the token k + 1 steps ahead. The losses of all heads are one request, over one vocabulary matrix.

The hidden states of the heads are stacked in front, targets are shifted for each head, and row_weight discounts the heads further ahead. No
logits of any head are in memory, and the gradient of the shared matrix adds up in fp32 over all of them.
"""

import torch

import lossd

HEADS, BATCH, TOKENS, SIZE, VOCAB, DISCOUNT = 3, 16, 12, 32, 24, 0.8


class Heads(torch.nn.Module):
    """h + silu(W_k h) of each head k: [heads, ..., size]."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(SIZE, SIZE) for _ in range(HEADS))

    def forward(self, hidden):
        return torch.stack([hidden + torch.nn.functional.silu(block(hidden)) for block in self.blocks])


def shifted(tokens):
    """The token k + 1 ahead for each head; -100 where the text has ended."""
    padded = torch.nn.functional.pad(tokens, (0, HEADS), value=-100)
    return torch.stack([padded[:, k + 1:k + 1 + TOKENS] for k in range(HEADS)])


torch.manual_seed(0)
start = torch.randint(VOCAB, (BATCH, 1))
tokens = (start + 5 * torch.arange(TOKENS)) % VOCAB                           # a text that can be foreseen
backbone, heads = torch.nn.Embedding(VOCAB, SIZE), Heads()
weight = torch.nn.Parameter(0.1 * torch.randn(VOCAB, SIZE))
target = shifted(tokens)
row_weight = (DISCOUNT ** torch.arange(HEADS))[:, None, None].expand(target.shape).contiguous()
optimizer = torch.optim.Adam([*backbone.parameters(), *heads.parameters(), weight], lr=0.005)
with lossd.connect() as client:
    for step in range(61):
        loss, reply = lossd.linear_cross_entropy(heads(backbone(tokens)), weight, target, client=client, row_weight=row_weight,
                                                 reduction="mean", denominator_from="weight_sum", want=("argmax",))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            counted = target != -100
            hits = [(reply["argmax"][k] == target[k])[counted[k]].float().mean().item() for k in range(HEADS)]
            print(f"step {step:2d}  loss {loss.item():.4f}  accuracy " + " ".join(f"{hit:.2f}" for hit in hits))
