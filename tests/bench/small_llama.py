"""A Llama-shaped model whose norms, rotary embedding, gated layers and loss are exchangeable: torch's, Liger's, or lossd's."""

import dataclasses
import importlib

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    @property
    def head(self):
        return self.hidden // self.heads


class TorchParts:
    """As Hugging Face's eager Llama computes them."""

    name = "eager"

    def norm(self, x, weight, eps):
        y = x.float()
        return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)

    def rotate(self, q, k, cos, sin):
        """q, k [B, A, T, D]; cos, sin [1, T, D]."""
        return tuple(x * cos.unsqueeze(1).to(x.dtype) + _swapped(x) * sin.unsqueeze(1).to(x.dtype) for x in (q, k))

    def gate(self, gate, up):
        return F.silu(gate) * up

    def loss(self, hidden, weight, target):
        return F.cross_entropy((hidden @ weight.t()).float(), target)


def _swapped(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


class LigerParts:
    """Liger-Kernel's modules."""

    name = "Liger"

    def __init__(self):
        self.functions = importlib.import_module("liger_kernel.transformers.functional")
        self.rope = importlib.import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb
        self.linear = importlib.import_module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss()

    def norm(self, x, weight, eps):
        return self.functions.liger_rms_norm(x, weight, eps, in_place=False)

    def rotate(self, q, k, cos, sin):
        return self.rope(q, k, cos, sin)

    def gate(self, gate, up):
        return self.functions.liger_swiglu(gate, up)

    def loss(self, hidden, weight, target):
        return self.linear(weight, hidden, target)


class LossdParts:
    """lossd's functions. layers: False leaves norms, rotary embedding and gates to torch, since a layer is too short for a server's call."""

    def __init__(self, client, name="lossd", layers=True):
        import lossd
        self.lossd, self.client, self.name, self.layers = lossd, client, name, layers
        self.drop_in = importlib.import_module("lossd.drop_in.layers")
        self.plain = TorchParts()

    def norm(self, x, weight, eps):
        return self.lossd.rms_norm(x, weight, client=self.client, eps=eps) if self.layers else self.plain.norm(x, weight, eps)

    def rotate(self, q, k, cos, sin):
        if not self.layers:
            return self.plain.rotate(q, k, cos, sin)
        cosine, sine = self.drop_in._half(cos, cos.shape[-1]), self.drop_in._half(sin, sin.shape[-1])
        position = self.drop_in._positions(cos, q.shape[0], q.shape[2])
        return tuple(self.lossd.rope(x.transpose(1, 2), cosine, sine, position, client=self.client).transpose(1, 2) for x in (q, k))

    def gate(self, gate, up):
        if not self.layers:
            return self.plain.gate(gate, up)
        return self.lossd.swiglu(gate, up, client=self.client, round_activation=True)

    def loss(self, hidden, weight, target):
        return self.lossd.linear_cross_entropy(hidden, weight, target, client=self.client, reduction="mean", denominator_from="count")


class Block(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.before_attention = torch.nn.Parameter(torch.ones(shape.hidden))
        self.before_gate = torch.nn.Parameter(torch.ones(shape.hidden))
        width = shape.head * (shape.heads + 2 * shape.kv_heads)
        self.qkv = torch.nn.Linear(shape.hidden, width, bias=False)
        self.out = torch.nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.gate = torch.nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up = torch.nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down = torch.nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x, cos, sin, parts):
        x = x + self.out(self.attend(parts.norm(x, self.before_attention, 1e-5), cos, sin, parts))
        y = parts.norm(x, self.before_gate, 1e-5)
        return x + self.down(parts.gate(self.gate(y), self.up(y)))

    def attend(self, x, cos, sin, parts):
        s = self.shape
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, s.head).transpose(1, 2)
        q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], 1)
        q, k = parts.rotate(q, k, cos, sin)
        k, v = (y.repeat_interleave(s.heads // s.kv_heads, 1) for y in (k, v))
        return attention(q, k, v).transpose(1, 2).reshape(batch, length, -1)


def attention(q, k, v):
    """Causal."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(later, float("-inf")), -1) @ v


class Model(torch.nn.Module):
    """forward(tokens [B, T], target [B, T], parts): mean cross entropy of the targets."""

    def __init__(self, shape, length):
        super().__init__()
        self.embedding = torch.nn.Embedding(shape.vocab, shape.hidden)
        self.blocks = torch.nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = torch.nn.Parameter(torch.ones(shape.hidden))
        self.head = torch.nn.Linear(shape.hidden, shape.vocab, bias=False)
        angles = torch.arange(length)[:, None] / 10000.0 ** (torch.arange(0, shape.head, 2) / shape.head)
        angles = torch.cat([angles, angles], -1).unsqueeze(0)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, target, parts):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, parts)
        x = parts.norm(x, self.norm, 1e-5)
        return parts.loss(x.flatten(0, 1), self.head.weight, target.flatten())


def sentences(vocab, batch, length, steps, seed=0):
    """[steps, batch, length + 1] of a language in which a token allows four successors, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    successors = torch.randint(vocab, (vocab, 4), generator=generator)
    tokens = torch.randint(vocab, (steps * batch,), generator=generator)
    text = [tokens]
    for _ in range(length):
        choice = torch.randint(4, (steps * batch,), generator=generator)
        text.append(successors[text[-1], choice])
    return torch.stack(text, -1).view(steps, batch, length + 1)


def train(parts, shape, steps, batch, length, device="cpu", dtype=torch.float32, rate=1e-3, seed=0):
    """Losses [steps] and final weights by name, of a model that starts from the seed."""
    torch.manual_seed(seed)
    model = Model(shape, length).to(device=device, dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for text in sentences(shape.vocab, batch, length, steps, seed).to(device):
        optimizer.zero_grad(set_to_none=True)
        loss = model(text[:, :-1], text[:, 1:], parts)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).float().cpu(), {name: value.detach().float().cpu() for name, value in model.named_parameters()}
