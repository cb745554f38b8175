"""lossd's torch functions on CUDA tensors: right values. The server is another process on the same GPU. Times: tests/bench/compare.py.

usage: torch_values.py LOSSD_BINARY
"""

import os
import subprocess
import sys
import tempfile
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "client", "python"))
import lossd  # noqa: E402

failures = 0


def expect(good, what):
    global failures
    print(f"  {'ok' if good else 'FAIL':4s} {what}", flush=True)
    failures += not good


def relative(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def grpo_reference(hidden, weight, target, old, ref, advantage, low, high, beta):
    """Token-mean PPO with K3 KL to the reference: TRL's GRPO with loss_type bnpo."""
    logprob = torch.log_softmax(hidden @ weight.t(), -1).gather(-1, target[:, None].long())[:, 0]
    ratio = torch.exp(logprob - old)
    policy = -torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    drift = ref - logprob
    return (policy + beta * (torch.exp(drift) - drift - 1)).mean()


def check(client):
    print("values against torch in float64 (N 257, H 256, V 1000)")
    torch.manual_seed(1)
    for dtype, bar in ((torch.float32, 2e-5), (torch.bfloat16, 4e-3), (torch.float16, 1e-3)):
        hidden = (torch.randn(257, 256, device="cuda") * 0.5).to(dtype).requires_grad_()
        weight = (torch.randn(1000, 256, device="cuda") * 0.1).to(dtype).requires_grad_()
        target = torch.randint(0, 1000, (257,), device="cuda")
        target[3] = -100
        # The inputs are still being made on the stream when the call is sent.
        loss = lossd.linear_cross_entropy(hidden, weight, target, client=client, reduction="mean", denominator_from="count")
        loss.backward()
        exact_h, exact_w = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
        exact = torch.nn.functional.cross_entropy(exact_h @ exact_w.t(), target)
        exact.backward()
        errors = (abs(loss.item() / exact.item() - 1), relative(hidden.grad, exact_h.grad), relative(weight.grad, exact_w.grad))
        expect(errors[0] < 2e-6 and max(errors[1:]) < bar,
               f"linear_cross_entropy {dtype}: loss {errors[0]:.1e}, grad hidden {errors[1]:.1e}, weight {errors[2]:.1e}")

        old, ref = -4 - torch.rand(257, device="cuda"), -4 - torch.rand(257, device="cuda")
        advantage = torch.randn(257, device="cuda")
        target[3] = 7
        hidden.grad = weight.grad = exact_h.grad = exact_w.grad = None
        loss = lossd.policy_loss(hidden, weight, target, client=client, kind="ppo", advantage=advantage, old_logprob=old,
                                 ref_logprob=ref, clip_low=0.2, clip_high=0.2, kl_estimator="k3", kl_coef=0.04,
                                 denominator_from="count")
        loss.backward()
        exact = grpo_reference(exact_h, exact_w, target, old.double(), ref.double(), advantage.double(), 0.2, 0.2, 0.04)
        exact.backward()
        errors = (abs(loss.item() / exact.item() - 1), relative(hidden.grad, exact_h.grad), relative(weight.grad, exact_w.grad))
        expect(errors[0] < 1e-4 and max(errors[1:]) < bar,
               f"policy_loss {dtype}: loss {errors[0]:.1e}, grad hidden {errors[1]:.1e}, weight {errors[2]:.1e}")

        hidden.grad = weight.grad = exact_h.grad = exact_w.grad = None
        up = torch.randn(257, device="cuda")
        logprob = lossd.linear_logprob(hidden, weight, target, client=client)
        (logprob * up).sum().backward()
        want = torch.log_softmax(exact_h @ exact_w.t(), -1).gather(-1, target[:, None])[:, 0]
        (want * up.double()).sum().backward()
        errors = ((logprob - want).abs().max().item(), relative(hidden.grad, exact_h.grad), relative(weight.grad, exact_w.grad))
        expect(errors[0] < 2e-5 and max(errors[1:]) < bar,
               f"linear_logprob {dtype}: value {errors[0]:.1e}, grad hidden {errors[1]:.1e}, weight {errors[2]:.1e}")

    # main_grad: added to in place, weight.grad stays None.
    weight = torch.nn.Parameter((torch.randn(1000, 256, device="cuda") * 0.1).bfloat16())
    hidden = torch.randn(64, 256, device="cuda").bfloat16().requires_grad_()
    target = torch.randint(0, 1000, (64,), device="cuda")
    weight.main_grad = torch.zeros(1000, 256, device="cuda")
    for _ in range(2):
        lossd.linear_cross_entropy(hidden, weight, target, client=client).backward()
    once = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    torch.nn.functional.cross_entropy(once[0] @ once[1].t(), target, reduction="sum").backward()
    error = relative(weight.main_grad, 2 * once[1].grad)
    expect(weight.grad is None and error < 4e-3, f"main_grad holds two micro-batches: {error:.1e}")


def main():
    binary = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/lossd.sock"
        server = subprocess.Popen([binary, "--backend=cuda", "--workspace=2200000000", f"--listen={address}", "--parent-death"])
        try:
            for _ in range(300):
                if os.path.exists(f"{folder}/lossd.sock.session"):
                    break
                time.sleep(0.1)
            with lossd.connect(address) as client:
                print(f"torch {torch.__version__}, server {client.server_info}".replace("\n", " ")[:200])
                check(client)
        finally:
            server.terminate()
            server.wait()
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
