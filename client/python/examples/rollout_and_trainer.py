"""Two processes share one server: a rollout process samples and scores its tokens, a trainer learns from them by GRPO.

Both ask the same server for log-probabilities with batch_invariant, so what the rollout says of a token and what the trainer computes again, in
another batch, has the same bits: the ratio of the first update is exactly 1. The reward is the share of even tokens.
"""

import torch
import torch.multiprocessing as multiprocessing

import lossd

GROUPS, GROUP, TOKENS, SIZE, VOCAB, ROUNDS = 4, 8, 8, 16, 32, 12


class Policy(torch.nn.Module):
    """The next token from the last one: a table of hidden states and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(VOCAB, SIZE)
        self.head = torch.nn.Linear(SIZE, VOCAB, bias=False)


def rollout(directory, address, rounds, weights):
    """Sends (tokens [B, T + 1], log-probabilities [B, T]) and takes the weights that were learnt from them."""
    lossd.load(directory)
    policy = Policy()
    generator = torch.Generator().manual_seed(1)
    with lossd.connect(address, name="rollout") as client, torch.no_grad():
        for _ in range(ROUNDS):
            tokens = torch.randint(VOCAB, (GROUPS, 1), generator=generator).repeat_interleave(GROUP, 0)  # a group has one prompt
            for _ in range(TOKENS):
                logits = policy.head(policy.table(tokens[:, -1]))
                tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1, generator=generator)], 1)
            logprob = torch.cat([lossd.linear_logprob(policy.table(some[:, :-1]), policy.head.weight, some[:, 1:].contiguous(),
                                                      client=client, batch_invariant=True)
                                 for some in tokens.split(5)])  # in batches of its own
            rounds.put((tokens.numpy(), logprob.numpy()))
            policy.load_state_dict({name: torch.from_numpy(value) for name, value in weights.get().items()})


def train(client, rounds, weights):
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.03)
    cu_seqlens = torch.arange(GROUPS * GROUP + 1) * TOKENS
    for number in range(ROUNDS):
        tokens, old = map(torch.from_numpy, rounds.get())
        reward = (tokens[:, 1:] % 2 == 0).float().mean(-1)
        groups = reward.view(GROUPS, GROUP)
        advantage = ((groups - groups.mean(-1, keepdim=True)) / (groups.std(-1, keepdim=True) + 1e-4)).flatten()
        for update in range(2):
            loss, reply = lossd.linear_policy_loss(
                policy.table(tokens[:, :-1]), policy.head.weight, tokens[:, 1:].contiguous(), client=client, kind="ppo", clip_low=0.2,
                clip_high=0.2, sequence_advantage=advantage, cu_seqlens=cu_seqlens, old_logprob=old, sequence_weighting="inverse_length",
                denominator_from="sequences", batch_invariant=True, want=())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ratio = reply.metrics["ratio"]
            print(f"round {number:2d}  update {update}  reward {reward.mean():.3f}  ratio {ratio.min:.6f} to {ratio.max:.6f}")
        weights.put({name: value.numpy().copy() for name, value in policy.state_dict().items()})


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    rounds, weights = context.SimpleQueue(), context.SimpleQueue()
    with lossd.connect(name="trainer") as client:  # its private server is the one that both use
        process = context.Process(target=rollout, args=(lossd.load().directory, client.address, rounds, weights))
        process.start()
        train(client, rounds, weights)
        process.join()
