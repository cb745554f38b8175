"""lossd's torch functions on CUDA tensors: right values first, then time beside torch eager, torch.compile and Liger (if it is installed),
interleaved in one process on the same tensors. The server is another process on the same GPU.

usage: torch_peers.py LOSSD_BINARY [quick]
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


def grpo_reference(hidden, weight, target, old, ref, advantage, low, high, beta, dtype):
    """Token-mean PPO with K3 KL to the reference: TRL's GRPO with loss_type bnpo."""
    logits = (hidden.to(dtype) @ weight.to(dtype).t()).to(torch.promote_types(dtype, torch.float32))
    logprob = torch.log_softmax(logits, -1).gather(-1, target[:, None].long())[:, 0]
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
        exact = grpo_reference(exact_h, exact_w, target, old.double(), ref.double(), advantage.double(), 0.2, 0.2, 0.04, torch.float64)
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


def median_ms(functions, seconds):
    """Median milliseconds of each function, called in turn until the time is over; the first half second warms up."""
    times = [[] for _ in functions]
    for function in functions:
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for function, row in zip(functions, times):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            function()
            torch.cuda.synchronize()
            row.append(1000 * (time.perf_counter() - begin))
    result = []
    for row in times:
        row = sorted(row[len(row) // 4:])
        result.append((row[len(row) // 2], row[len(row) // 10], row[len(row) * 9 // 10]))
    return result


def report(title, names, functions, seconds):
    print(title)
    clean = []
    for name, function in zip(names, functions):
        try:
            function()
            torch.cuda.synchronize()
            clean.append((name, function))
        except Exception as error:  # a peer that does not run here is said, not hidden
            print(f"  {name:28s} did not run: {str(error).splitlines()[0][:100]}")
    for (name, _), (middle, low, high) in zip(clean, median_ms([f for _, f in clean], seconds)):
        print(f"  {name:28s} {middle:9.2f} ms   (10% {low:.2f}, 90% {high:.2f})", flush=True)


def compare(client, quick):
    torch.manual_seed(2)
    width, vocab = 4096, 128256
    rows = 4096
    hidden = torch.randn(rows, width, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(vocab, width, device="cuda") * 0.02).bfloat16().requires_grad_()
    target = torch.randint(0, vocab, (rows,), device="cuda")
    old = -11.8 + 0.1 * torch.randn(rows, device="cuda")
    ref = -11.8 + 0.1 * torch.randn(rows, device="cuda")
    advantage = torch.randn(4, device="cuda").repeat_interleave(1024)

    def step(function):
        def run():
            hidden.grad = weight.grad = None
            function().backward()
        return run

    def lossd_grpo():
        return lossd.policy_loss(hidden, weight, target, client=client, kind="ppo", advantage=advantage, old_logprob=old,
                                 ref_logprob=ref, clip_low=0.2, clip_high=0.2, kl_estimator="k3", kl_coef=0.04, denominator=rows)

    def eager_grpo():
        return grpo_reference(hidden, weight, target, old, ref, advantage, 0.2, 0.2, 0.04, torch.bfloat16)

    names, functions = ["lossd policy_loss", "torch eager"], [step(lossd_grpo), step(eager_grpo)]
    try:
        from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss
        liger = LigerFusedLinearGRPOLoss(beta=0.04, epsilon_low=0.2, epsilon_high=0.2, loss_type="bnpo", compiled=not quick)
        mask = torch.ones(4, 1024, device="cuda")

        def liger_grpo():
            out = liger(hidden.view(4, 1024, width), weight, target.view(4, 1024), mask, advantage.view(4, 1024)[:, 0],
                        ref_per_token_logps=ref.view(4, 1024), old_per_token_logps=old.view(4, 1024))
            return out[0]
        names.append("Liger fused linear GRPO")
        functions.append(step(liger_grpo))
    except ImportError:
        print("Liger is not installed")
    report("GRPO, 4 x 1024 tokens, H 4096, V 128256, bf16, forward + backward", names, functions, 6 if quick else 10)

    def lossd_ce():
        return lossd.linear_cross_entropy(hidden, weight, target, client=client)

    def eager_ce():
        return torch.nn.functional.cross_entropy((hidden @ weight.t()).float(), target, reduction="sum")

    def products():
        with torch.no_grad():
            logits = hidden @ weight.t()
            logits @ weight
            logits.t() @ hidden
    report("cross entropy, N 4096, H 4096, V 128256, bf16, forward + backward", ["three products (torch)", "lossd", "torch eager"],
           [products, step(lossd_ce), step(eager_ce)], 5 if quick else 8)
    hidden.grad = weight.grad = None
    eager_ce().backward()
    peer = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    lossd_ce().backward()
    take = slice(0, 64)
    z = hidden.detach()[take].double() @ weight.detach().double().t()
    p = torch.softmax(z, -1)
    p[torch.arange(64, device="cuda"), target[take]] -= 1
    exact = p @ weight.detach().double()
    print(f"  grad hidden against float64, 64 rows: lossd {relative(hidden.grad[take], exact):.2e}, torch eager "
          f"{relative(peer[0][take], exact):.2e}")


def main():
    binary, quick = sys.argv[1], "quick" in sys.argv[2:]
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
                compare(client, quick)
        finally:
            server.terminate()
            server.wait()
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
