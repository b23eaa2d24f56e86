"""SALT for a module of your own: say what its logits and its loss are, and the rest is the same."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from stackelberg import SALT, Task

PAD = 0


class Classifier(nn.Module):
    """A convolution over words, and the largest response of each filter."""

    def __init__(self, words: int = 20, width: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PAD)
        self.filters = nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(B, L) → (B, classes)."""
        found = torch.tanh(self.filters(self.embedding(ids).transpose(1, 2)))
        return self.head(found.masked_fill((ids == PAD)[:, None], -1.0).amax(-1))


task = Task(
    "classification",
    logits=lambda model, batch: model(batch[0]),
    loss=lambda logits, batch: cross_entropy(logits, batch[1]),
    masks=lambda batch: batch[0] != PAD,  # padding is not perturbed, and counts in no norm
)  # the only nn.Embedding is the one that is perturbed; with several, say which: embeddings={"source": "embedding"}

torch.manual_seed(0)
ids = torch.randint(1, 20, (128, 8)).masked_fill(torch.arange(8) >= torch.randint(4, 9, (128, 1)), PAD)
batches = list(zip(ids.split(16), (ids == 7).any(1).long().split(16), strict=True))  # does a 7 occur?

model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
game = SALT(task=task, weight=1.0, epsilon=0.5, steps=1)

for epoch in range(6):
    losses = []
    for batch in batches:
        report = game.backward(model, batch)  # the gradient of game(model, batch), with less memory
        optimizer.step()
        optimizer.zero_grad()
        losses.append(report.task_loss)
    print(f"epoch {epoch}: task loss {torch.stack(losses).mean():.4f}", flush=True)
