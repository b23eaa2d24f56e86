"""SALT with Accelerate, accumulation and bfloat16: as it is, or by `accelerate launch examples/accelerate_loop.py`."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from stackelberg import SALT

accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")

torch.manual_seed(0)
# In earnest: AutoModelForSequenceClassification.from_pretrained(...), and your own data set.
config = BertConfig(
    vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = BertForSequenceClassification(config).train()
examples = [{"input_ids": ids, "labels": (ids[0] > 9).long()} for ids in torch.randint(20, (128, 8))]
loader = DataLoader(examples, batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

game = SALT(weight=1.0, epsilon=0.5, steps=1)  # with checkpoints: accelerator.register_for_checkpointing(game)

for epoch in range(5):
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            with accelerator.autocast():  # Accelerate puts autocast into model.forward, and the game goes around that
                loss = game(model, batch)  # was: loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(game.report.task_loss)
    accelerator.print(f"epoch {epoch}: task loss {torch.stack(losses).mean():.4f}", flush=True)
