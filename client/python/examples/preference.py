"""DPO: a linear head learns which of two answers is wanted. Loss, gradients and metrics come from a private lossd server."""

import torch

import lossd

PAIRS, TOKENS, SIZE, VOCAB = 32, 6, 16, 50
torch.manual_seed(0)
hidden = torch.randn(2 * PAIRS, TOKENS, SIZE)                # all chosen answers, then all rejected ones
target = torch.randint(VOCAB, (2 * PAIRS, TOKENS))
cu_seqlens = torch.arange(2 * PAIRS + 1) * TOKENS            # where each answer begins, and the end
with lossd.connect() as client:
    weight = torch.nn.Parameter(0.1 * torch.randn(VOCAB, SIZE))
    with torch.no_grad():
        reference = lossd.linear_logprob(hidden, weight, target, client=client)
    optimizer = torch.optim.SGD([weight], lr=5.0)
    for step in range(31):
        loss, reply = lossd.linear_preference_loss(
            hidden, weight, target, client=client, terms=[{"type": "sigmoid", "beta": 0.1}], pairing="halves", cu_seqlens=cu_seqlens,
            ref_logprob=reference, denominator_from="count", want=())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            accuracy, margin = reply.metrics["accuracy"].mean, reply.metrics["margin"].mean
            print(f"step {step:2d}  loss {loss.item():.4f}  accuracy {accuracy:.2f}  margin {margin:.2f}")
