"""A Hugging Face causal language model learns with lossd: python3 huggingface.py plain | ddp | fsdp | lightning

One line switches lossd on; the training loop is the usual one. The model is tiny, has random weights and is made on the spot. Needs
transformers, "lightning" Lightning too. ddp and fsdp run two processes on the CPU (gloo); under torchrun the same code runs on GPUs (nccl).

DeepSpeed needs nothing more: call apply_lossd_to_llama() in each process before deepspeed.initialize. The loss and the gradients of the head
are computed inside lm_head's own forward, where ZeRO-3 has gathered its weight; nothing reads the weight again in the backward. CUDA
allocations that a server reads must not come from expandable segments (PYTORCH_CUDA_ALLOC_CONF); an embedded client has no such limit.
"""

import os
import sys
import tempfile

import tiny_llama
import torch
import torch.distributed as dist

from lossd.adapters.huggingface import apply_lossd_to_llama

STEPS = 40


def learn(model, batch, rank=0):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    for step in range(STEPS + 1):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and rank == 0:
            print(f"step {step:2d}  loss {loss.item():.4f}")


def plain():
    words = tiny_llama.tokenizer()
    torch.manual_seed(0)
    learn(tiny_llama.model(words), tiny_llama.batch(words))


def parallel(rank, size, how, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    apply_lossd_to_llama()  # each process for itself
    words = tiny_llama.tokenizer()
    torch.manual_seed(0)
    model = tiny_llama.model(words)
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (size,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    learn(model, tiny_llama.batch(words, rank, size), rank)
    dist.destroy_process_group()


def lightning():
    from lightning.pytorch import LightningModule, Trainer

    class Task(LightningModule):
        def __init__(self):
            super().__init__()
            self.words = tiny_llama.tokenizer()
            self.model = tiny_llama.model(self.words)

        def training_step(self, batch, index):
            loss = self.model(**batch).loss
            if index % 20 == 0:
                print(f"step {index:2d}  loss {loss.item():.4f}")
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    torch.manual_seed(0)
    task = Task()
    data = [tiny_llama.batch(task.words)] * (STEPS + 1)
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False)
    trainer.fit(task.train(), torch.utils.data.DataLoader(data, batch_size=None))


if __name__ == "__main__":
    how = sys.argv[1] if len(sys.argv) > 1 else "plain"
    if how in ("plain", "lightning"):
        apply_lossd_to_llama()
        {"plain": plain, "lightning": lightning}[how]()
    elif how in ("ddp", "fsdp"):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(parallel, (2, how, os.path.join(folder, "store")), 2)
    else:
        sys.exit(__doc__)
