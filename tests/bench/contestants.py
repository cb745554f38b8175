"""Who takes part: lossd and other implementations of the same losses, each imported from where it is installed.

A class is an implementation; its methods have the names of operations (problems.PROBLEMS) and return contestants for a problem. An
operation without a method is one that it does not have.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import site
import sys
import types

import torch
import torch.nn.functional as F

import lossd


class Contestant:
    """One way to compute a problem. run() returns the loss, or (log-probability, entropy or None) of each token where no gradient is asked.

    workspace_bytes: memory of the implementation that torch does not see. plan: how it was computed, if it says so.
    """

    def __init__(self, name, run, workspace_bytes=0):
        self.name, self.run, self.workspace_bytes = name, run, workspace_bytes
        self.plan = ""


class Lossd:
    """The server through the Python client; one contestant for each workspace (bytes) that its calls may use."""

    name = "lossd"
    package = None

    def __init__(self, client, workspaces):
        self.client, self.workspaces = client, workspaces

    def _contestants(self, call, mode=""):
        result = []
        for limit in self.workspaces:
            size = f", {limit / 1e9:.2g} GB" if len(self.workspaces) > 1 else ""
            contestant = Contestant(self.name + mode + size, None, limit)
            contestant.run = functools.partial(call, contestant, limit)
            result.append(contestant)
        return result

    def _loss(self, function, p, mode="fused", **options):
        """A loss and its gradients in one pass. mode "fused": d_loss is given in the call; "forward": autograd scales the gradients."""
        if mode == "fused":
            options["d_loss"] = 1.0

        def call(contestant, limit):
            loss, reply = function(p.hidden, p.weight, client=self.client, backward=mode, want=(), workspace_limit=limit, **options)
            contestant.plan = reply.plan
            return loss
        return self._contestants(call, "" if mode == "fused" else f", {mode}")

    def cross_entropy(self, p):
        options = {"target": p.target, "reduction": "mean", "denominator_from": "count"}
        return [contestant for mode in ("fused", "forward")
                for contestant in self._loss(lossd.linear_cross_entropy, p, mode, **options)]

    def logprob(self, p):
        def call(_, limit):
            return lossd.linear_logprob(p.hidden, p.weight, p.target, client=self.client, want=("logprob", "entropy"),
                                        workspace_limit=limit)
        return self._contestants(call)

    def policy(self, p):
        return self._loss(lossd.linear_policy_loss, p, target=p.target, kind="ppo", advantage=p.token_advantage, old_logprob=p.old,
                          ref_logprob=p.ref, clip_low=p.clip, clip_high=p.clip, kl_estimator="k3", kl_coef=p.kl_coef,
                          denominator_from="count")

    def _preference(self, p, term, **options):
        return self._loss(lossd.linear_preference_loss, p, target=p.target, terms=[{"beta": p.beta, **term}], pairing="halves",
                          cu_seqlens=p.cu_seqlens, denominator_from="count", **options)

    def dpo(self, p):
        return self._preference(p, {"type": "sigmoid"}, ref_hidden=p.ref_hidden, ref_weight=p.ref_weight)

    def orpo(self, p):
        return self._preference(p, {"type": "orpo", "length_average": True}, reference_free=True, nll_coef=1,
                                nll_denominator_from="count")

    def jsd(self, p):
        return self._loss(lossd.linear_distill_loss, p, divergence="jsd", beta=0.5, teacher_hidden=p.teacher_hidden,
                          teacher_weight=p.teacher_weight, reduction="mean", denominator_from="count")


class LossdEmbedded(Lossd):
    """The same in this process, on torch's stream."""

    name = "lossd, embedded"

    def cross_entropy(self, p):
        return super().cross_entropy(p)[:len(self.workspaces)]


class Eager:
    """torch, logits in memory."""

    name = "torch eager"
    package = "torch"

    def _wrap(self, function):
        return function

    def _contestant(self, function, name=None):
        return [Contestant(name or self.name, self._wrap(function))]

    @staticmethod
    def _logprob(hidden, weight, target):
        logits = (hidden @ weight.t()).float()
        return logits.gather(-1, target[:, None])[:, 0] - torch.logsumexp(logits, -1)

    def cross_entropy(self, p):
        return self._contestant(lambda: F.cross_entropy((p.hidden @ p.weight.t()).float(), p.target))

    def logprob(self, p):
        def of(hidden, target):
            logits = (hidden @ p.weight.t()).float()
            lse = torch.logsumexp(logits, -1)
            entropy = lse - (torch.exp(logits - lse[:, None]) * logits).sum(-1)
            return logits.gather(-1, target[:, None])[:, 0] - lse, entropy

        of = self._wrap(of)

        def in_chunks(rows=1024):
            parts = [of(p.hidden[start:start + rows], p.target[start:start + rows]) for start in range(0, len(p.hidden), rows)]
            return tuple(torch.cat(column) for column in zip(*parts))
        return [Contestant(self.name, lambda: of(p.hidden, p.target)), Contestant(self.name + ", chunks of 1024", in_chunks)]

    def policy(self, p):
        return self._contestant(lambda: p.loss(self._logprob(p.hidden, p.weight, p.target)))

    orpo = policy

    def dpo(self, p):
        def run():
            with torch.no_grad():
                ref = self._logprob(p.ref_hidden, p.ref_weight, p.target)
            return p.loss(self._logprob(p.hidden, p.weight, p.target), ref)
        return self._contestant(run)

    def jsd(self, p):
        def run():
            with torch.no_grad():
                teacher = (p.teacher_hidden @ p.teacher_weight.t()).float()
            return p.divergence((p.hidden @ p.weight.t()).float(), teacher).mean()
        return self._contestant(run)


class Compiled(Eager):
    """The same by torch.compile."""

    name = "torch.compile"

    def __init__(self):
        if not hasattr(torch, "compile"):
            raise ImportError("this torch has no torch.compile")

    def _wrap(self, function):
        return torch.compile(function, dynamic=False)


class Liger:
    """Liger-Kernel. compiled: its chunked losses go through torch.compile, which is its default and takes seconds a shape."""

    name = "Liger"
    package = "liger_kernel"

    def __init__(self, compiled=True):
        self.compiled = compiled
        self.transformers = importlib.import_module("liger_kernel.transformers")
        self.chunked = importlib.import_module("liger_kernel.chunked_loss")
        self.scaled = importlib.import_module("liger_kernel.ops.fused_linear_scaled_cross_entropy")
        self.grpo = importlib.import_module("liger_kernel.transformers.grpo_loss")

    def _chunked(self, run):
        return Contestant(self.name + " chunked" + ("" if self.compiled else ", not compiled"), run)

    def cross_entropy(self, p):
        loss = self.transformers.LigerFusedLinearCrossEntropyLoss
        plain, fp32 = loss(), loss(accum_dtype=torch.float32)
        return [Contestant(self.name, lambda: plain(p.weight, p.hidden, p.target)),
                Contestant(self.name + ", fp32 accumulation", lambda: fp32(p.weight, p.hidden, p.target))]

    def logprob(self, p):
        def run():
            loss, entropy = self.scaled.LigerFusedLinearScaledCrossEntropyFunction.apply(p.hidden, p.weight, p.target, 1.0, -100, 1, True)
            return -loss, entropy
        return [Contestant(self.name, run)]

    def policy(self, p):
        shape = (p.sequences, p.tokens)
        fused = self.chunked.LigerFusedLinearGRPOLoss(beta=p.kl_coef, epsilon_low=p.clip, epsilon_high=p.clip, loss_type="bnpo",
                                                      use_ref_model=True, compiled=self.compiled)
        target, old, ref, mask = p.target.view(shape), p.old.view(shape), p.ref.view(shape), torch.ones(shape, device=p.target.device)

        def chunked():
            return fused(p.hidden.view(*shape, -1), p.weight, target, mask, p.advantage, ref_per_token_logps=ref,
                         old_per_token_logps=old)[0]

        def on_logits():  # which has one more position a sequence than tokens
            logits = F.pad(p.hidden.view(*shape, -1), (0, 0, 0, 1)) @ p.weight.t()
            return self.grpo.triton_grpo_loss(logits, old, ref, target, p.advantage, None, 1.0, p.kl_coef, p.clip, p.clip,
                                              loss_type="bnpo", reduce=True)[0]
        return [self._chunked(chunked), Contestant(self.name + " on logits", on_logits)]

    def dpo(self, p):
        loss = self.chunked.LigerFusedLinearDPOLoss(beta=p.beta, compiled=self.compiled)

        def run():
            shape = (p.sequences, p.tokens)
            return loss(p.weight, p.hidden.view(*shape, -1), p.target.view(shape), ref_input=p.ref_hidden.view(*shape, -1),
                        ref_weight=p.ref_weight)[0]
        return [self._chunked(run)]

    def orpo(self, p):
        loss = self.chunked.LigerFusedLinearORPOLoss(beta=p.beta, compiled=self.compiled)

        def run():
            shape = (p.sequences, p.tokens)
            return loss(p.weight, p.hidden.view(*shape, -1), p.target.view(shape))[0]
        return [self._chunked(run)]

    def jsd(self, p):
        chunked = self.chunked.LigerFusedLinearJSDLoss(0.0, 1.0, beta=0.5, compiled=self.compiled)
        fused = self.transformers.LigerFusedLinearJSD(jsd_beta=0.5)
        return [self._chunked(lambda: chunked(p.hidden, p.weight, p.teacher_hidden, p.teacher_weight, p.target)),
                Contestant(self.name, lambda: fused(p.hidden, p.weight, p.teacher_hidden, p.teacher_weight, p.target))]


class LigerCute:
    """Liger-Kernel's kernels for Hopper in the CuTe DSL (nvidia-cutlass-dsl)."""

    name = "Liger CuTe"
    package = "liger_kernel"

    def __init__(self):
        folder = "liger_kernel.ops.cutedsl.ops."
        self.linear = importlib.import_module(folder + "fused_linear_cross_entropy_sm90").LigerFusedLinearCrossEntropySM90Function
        self.scaled = importlib.import_module(folder + "fused_scaled_cross_entropy_sm90").LigerFusedScaledCrossEntropySM90Function

    def cross_entropy(self, p):
        return [Contestant(self.name, lambda: self.linear.apply(p.hidden, p.weight, p.target)),
                Contestant(self.name + " scaled", lambda: self.scaled.apply(p.hidden, p.weight, p.target).mean())]

    def logprob(self, p):
        def run():
            loss, entropy = self.scaled.apply(p.hidden, p.weight, p.target, 1.0, -100, 1, True)
            return -loss, entropy
        return [Contestant(self.name, run)]

    def policy(self, p):
        return [Contestant(self.name, lambda: p.loss(-self.scaled.apply(p.hidden, p.weight, p.target)))]


class Cce:
    """Apple's cut-cross-entropy; by default it leaves small gradients out, "exact" does not."""

    name = "CCE"
    package = "cut_cross_entropy"

    def __init__(self):
        self.loss = importlib.import_module("cut_cross_entropy").linear_cross_entropy

    def _both(self, run):
        return [Contestant(self.name, run), Contestant(self.name + ", exact", functools.partial(run, filter_eps=None))]

    def cross_entropy(self, p):
        return self._both(functools.partial(self.loss, p.hidden, p.weight, p.target))

    def logprob(self, p):
        return [Contestant(self.name, lambda: (-self.loss(p.hidden, p.weight, p.target, reduction="none"), None))]

    def policy(self, p):
        return self._both(lambda **options: p.loss(-self.loss(p.hidden, p.weight, p.target, reduction="none", **options)))


class Verl:
    """verl's fused log-probability and entropy. Only its kernels are imported; its package would bring ray and more."""

    name = "verl"
    package = "verl"

    def __init__(self):
        spec = importlib.util.find_spec("verl")
        if spec is None:
            raise ImportError("No module named 'verl'")
        if "verl" not in sys.modules:
            path = spec.submodule_search_locations[0]
            for name in ("verl", "verl.utils", "verl.utils.kernel"):
                sys.modules[name] = types.ModuleType(name)
                sys.modules[name].__path__ = [os.path.join(path, *name.split(".")[1:])]
        self.linear = importlib.import_module("verl.utils.kernel.linear_cross_entropy").linear_cross_entropy

    def _run(self, p):
        return self.linear(p.hidden, p.weight, p.target, 1.0, "none")

    def cross_entropy(self, p):
        return [Contestant(self.name, lambda: -self._run(p)[0].mean())]

    def logprob(self, p):
        return [Contestant(self.name, lambda: self._run(p))]

    def policy(self, p):
        return [Contestant(self.name, lambda: p.loss(self._run(p)[0]))]


class Quack:
    """QuACK's chunked linear cross entropy (CuTe DSL)."""

    name = "QuACK"
    package = "quack-kernels"

    def __init__(self):
        self.loss = importlib.import_module("quack.linear_cross_entropy").chunked_linear_cross_entropy

    def cross_entropy(self, p):
        return [Contestant(self.name, lambda: self.loss(p.hidden, p.weight, p.target))]


def find_peers(paths, compiled_liger=True):
    """(implementations beside lossd, {name: version or why it is absent}); `paths` are folders with packages, as site-packages is one."""
    for path in paths:
        sys.path.insert(0, path)
        site.addsitedir(path)
    peers, found = [], {}
    for kind in (Eager, Compiled, functools.partial(Liger, compiled_liger), LigerCute, Cce, Verl, Quack):
        cls = getattr(kind, "func", kind)
        try:
            peers.append(kind())
        except Exception as error:  # a peer that cannot be imported is said, not hidden
            found[cls.name] = "absent: " + (str(error).splitlines() or [type(error).__name__])[0][:160]
            continue
        try:
            found[cls.name] = importlib.metadata.version(cls.package)
        except importlib.metadata.PackageNotFoundError:
            found[cls.name] = "version unknown"
    return peers, found
