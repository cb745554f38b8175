"""A linear head learns to name the largest of its inputs; its loss and gradients come from a private lossd server."""

import torch

import lossd

torch.manual_seed(0)
hidden = torch.randn(512, 32)
target = hidden.argmax(-1)
with lossd.connect() as client:
    weight = torch.nn.Parameter(client.share(torch.zeros(32, 32)))
    optimizer = torch.optim.SGD([weight], lr=3.0)
    for step in range(31):
        loss = lossd.linear_cross_entropy(hidden, weight, target, client=client, reduction="mean",
                                          denominator_from="count")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2d}  loss {loss.item():.4f}")
