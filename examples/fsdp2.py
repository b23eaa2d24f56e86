"""SALT on a model cut up by FSDP2: `torchrun --nproc-per-node 2 examples/fsdp2.py`."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM

from stackelberg import SALT

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")

torch.manual_seed(0)
# In earnest: AutoModelForCausalLM.from_pretrained(...), and your own data set.
config = LlamaConfig(
    vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, use_cache=False
)
model = LlamaForCausalLM(config).to(device)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)

examples = [(torch.arange(8) + start) % 20 for start in range(64)]  # counting, the words being numbers
sampler = DistributedSampler(examples)
loader = DataLoader(examples, batch_size=8, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)  # after fully_shard, whose shards it steps on
game = SALT(weight=1.0, epsilon=0.5, steps=1)

for epoch in range(4):
    sampler.set_epoch(epoch)
    losses = []
    for ids in loader:
        batch = {"input_ids": ids.to(device), "labels": ids.to(device)}
        numbers = torch.arange(len(ids)) * ranks + rank  # each example's number within the step keys its noise
        game(model, batch, index=numbers).backward()  # equal batches: every rank's own mean, averaged
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(game.report.task_loss)
    if rank == 0:
        print(f"epoch {epoch}: task loss {torch.stack(losses).mean():.4f}", flush=True)

dist.destroy_process_group()
