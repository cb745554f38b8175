"""TRL's trainers with and without lossd: tiny random-weight models, the same losses, metrics and weights."""

import pytest
import torch

from lossd.adapters import trl as adapter

trl = pytest.importorskip("trl", reason="trl is not installed")
if not hasattr(pytest.importorskip("trl.trainer.utils"), "_ChunkedLogProbFunction"):
    pytest.skip("this version of trl is older than its fused LM head", allow_module_level=True)
datasets = pytest.importorskip("datasets")
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

WORDS = "the a cat dog sees likes hates big small red . yes no".split()


def tokenizer():
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=17, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
                                        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                        max_position_embeddings=64, initializer_range=0.5))


PAIRS = [("the cat", "sees the dog .", "hates a dog ."), ("a dog", "likes the big cat .", "sees no cat ."),
         ("the big dog", "sees the cat .", "hates the red cat ."), ("no", "yes .", "no .")]


def common(folder, config, **more):
    return config(output_dir=str(folder), per_device_train_batch_size=4, max_steps=2, logging_steps=1, learning_rate=1e-3, report_to="none",
                  use_cpu=True, save_strategy="no", disable_tqdm=True, seed=3, bf16=False, gradient_checkpointing=False, **more)


def sft(folder):
    data = datasets.Dataset.from_list([{"prompt": prompt + " ", "completion": chosen} for prompt, chosen, _ in PAIRS])
    return trl.SFTTrainer(model(), args=common(folder, trl.SFTConfig, max_length=16), train_dataset=data, processing_class=tokenizer())


def dpo(folder):
    data = datasets.Dataset.from_list([{"prompt": p + " ", "chosen": c, "rejected": r} for p, c, r in PAIRS])
    return trl.DPOTrainer(model(), model(), args=common(folder, trl.DPOConfig, max_length=16), train_dataset=data, processing_class=tokenizer())


def kto(folder):
    data = datasets.Dataset.from_list([{"prompt": p + " ", "completion": text, "label": label} for p, c, r in PAIRS
                                       for text, label in ((c, True), (r, False))])
    return trl.KTOTrainer(model(), model(), args=common(folder, trl.KTOConfig, max_length=16), train_dataset=data, processing_class=tokenizer())


def grpo(folder):
    data = datasets.Dataset.from_list([{"prompt": p} for p, _, _ in PAIRS])

    def reward(completions, **_):
        return [float(len(set(text.split()))) for text in completions]

    config = common(folder, trl.GRPOConfig, num_generations=2, max_completion_length=6, beta=0.0, num_iterations=2)
    return trl.GRPOTrainer(model(), reward, args=config, train_dataset=data, processing_class=tokenizer())


def run(make, folder):
    torch.manual_seed(1)
    trainer = make(folder)
    trainer.train()
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    return losses, {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


@pytest.mark.parametrize("make", [sft, dpo, kto, grpo])
def test_a_trainer_s_losses_metrics_and_weights(client, tmp_path, make):
    expected, weights = run(make, tmp_path / "native")
    calls = []

    class Counted(adapter.LogprobFunction):
        def apply(self, *arguments):
            calls.append(len(arguments))
            return super().apply(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "LogprobFunction", Counted)
        with adapter.apply_lossd_to_trl(client):
            found, ours = run(make, tmp_path / "lossd")
    assert calls and len(found) == len(expected) == 2
    for mine, reference in zip(found, expected):
        for name, value in reference.items():
            if isinstance(value, float) and "time" not in name and "per_second" not in name and "step_time" not in name:
                assert mine[name] == pytest.approx(value, rel=1e-3, abs=2e-4), name
    for name, weight in weights.items():
        assert (ours[name] - weight).norm() <= 2e-3 * weight.norm(), name
