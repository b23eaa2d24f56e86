"""SALT in a PyTorch loop with clipping, a schedule and checkpoints: an interrupted run goes on where it was."""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from stackelberg import SALT

EPOCHS = 5
CHECKPOINT = Path(tempfile.mkdtemp()) / "last.pt"  # in earnest: a folder that stays

torch.manual_seed(0)
# In earnest: AutoModelForSequenceClassification.from_pretrained(...), and your own data set.
config = BertConfig(
    vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = BertForSequenceClassification(config).train()  # from_pretrained leaves a model in evaluation mode
examples = [{"input_ids": ids, "labels": (ids[0] > 9).long()} for ids in torch.randint(20, (128, 8))]
loader = DataLoader(examples, batch_size=16, shuffle=True)

optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=EPOCHS * len(loader))
game = SALT(weight=1.0, epsilon=0.5, steps=1)
game.plan(EPOCHS * len(loader))  # for schedules that are shares of the training; SMART has one

parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "game": game}
first = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    torch.set_rng_state(saved["random"])
    first = saved["epochs"]

for epoch in range(first, EPOCHS):
    losses = []
    for batch in loader:
        loss = game(model, batch)  # was: loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(game.report.task_loss)
    states = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**states, "random": torch.get_rng_state(), "epochs": epoch + 1}, CHECKPOINT)
    print(f"epoch {epoch}: task loss {torch.stack(losses).mean():.4f}", flush=True)
