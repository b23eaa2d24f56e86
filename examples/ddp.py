"""SALT on several processes with DDP and gradient accumulation: `torchrun --nproc-per-node 2 examples/ddp.py`."""

import os
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import BertConfig, BertForSequenceClassification

from stackelberg import SALT

ACCUMULATE = 2

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")

torch.manual_seed(0)
# In earnest: AutoModelForSequenceClassification.from_pretrained(...), and your own data set.
config = BertConfig(
    vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = DistributedDataParallel(BertForSequenceClassification(config).to(device))
examples = [{"input_ids": ids, "labels": (ids[0] > 9).long()} for ids in torch.randint(20, (128, 8))]

sampler = DistributedSampler(examples)  # pads its last batch, so that all ranks have equally many
loader = DataLoader(examples, batch_size=4, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
game = SALT(weight=1.0, epsilon=0.5, steps=1)

for epoch in range(4):
    sampler.set_epoch(epoch)
    batches, losses = iter(loader), []
    while micro_batches := list(islice(batches, ACCUMULATE)):
        # N: the sentences of the whole step, on all ranks. DDP averages over ranks, so each is told N / ranks.
        total = torch.tensor(sum(len(batch["labels"]) for batch in micro_batches), device=device)
        dist.all_reduce(total)
        played = 0
        for i, batch in enumerate(micro_batches):
            batch = {name: field.to(device) for name, field in batch.items()}
            # Each example's number within the step, which keys its noise. The sampler deals them out in turn.
            numbers = (played + torch.arange(len(batch["labels"]))) * ranks + rank
            played += len(numbers)
            with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():
                game(model, batch, normalizer=total / ranks, index=numbers).backward()
            losses.append(game.report.task_loss)
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(f"epoch {epoch}: task loss {torch.stack(losses).mean():.4f}", flush=True)

dist.destroy_process_group()
