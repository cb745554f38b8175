"""TRL's GRPO trainer with lossd behind its head: the tiny model learns to say as many different words as it can. Needs trl."""

import tempfile

import tiny_llama
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from lossd.adapters.trl import apply_lossd_to_trl


def reward(completions, **_):
    return [len(set(text.split())) / 8 for text in completions]


apply_lossd_to_trl(batch_invariant=True)  # old and new log-probabilities of a token have the same bits
torch.manual_seed(0)
words = tiny_llama.tokenizer()
prompts = Dataset.from_list([{"prompt": " ".join(sentence.split()[:2])} for sentence in tiny_llama.SENTENCES])
with tempfile.TemporaryDirectory() as folder:
    config = GRPOConfig(output_dir=folder, per_device_train_batch_size=8, num_generations=4, max_completion_length=8, num_iterations=2,
                        max_steps=8, logging_steps=2, learning_rate=1e-3, report_to="none", save_strategy="no", use_cpu=True,
                        bf16=False, disable_tqdm=True)
    GRPOTrainer(tiny_llama.model(words), reward, args=config, train_dataset=prompts, processing_class=words).train()
