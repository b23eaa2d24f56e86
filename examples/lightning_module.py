"""SALT in a LightningModule: three lines are changed, and each is marked."""

import tempfile

import lightning
import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from stackelberg import SALT
from stackelberg.adapters.lightning import GameCallback

# In earnest: AutoModelForSequenceClassification.from_pretrained(...), and your own data set.
CONFIG = BertConfig(
    vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)


class Classifier(lightning.LightningModule):
    """Any module of yours."""

    def __init__(self) -> None:
        super().__init__()
        self.model = BertForSequenceClassification(CONFIG).train()  # from_pretrained leaves it in evaluation mode
        self.game = SALT(weight=1.0, epsilon=0.5, steps=1)  # 1: new

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """The objective."""
        return self.game(self.model, batch)  # 2: was self.model(**batch).loss

    def on_train_epoch_end(self) -> None:
        """What the callback has logged."""
        print(f"epoch {self.current_epoch}: task loss {self.trainer.logged_metrics['game/task_loss']:.4f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As always."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


torch.manual_seed(0)
examples = [{"input_ids": ids, "labels": (ids[0] > 9).long()} for ids in torch.randint(20, (128, 8))]
module = Classifier()
trainer = lightning.Trainer(
    callbacks=[GameCallback(module.game)],  # 3: new
    default_root_dir=tempfile.mkdtemp(),  # in earnest: a folder that stays
    max_epochs=5,
    log_every_n_steps=8,
    gradient_clip_val=1.0,
    accumulate_grad_batches=2,
    enable_progress_bar=False,
)
trainer.fit(module, DataLoader(examples, batch_size=8, shuffle=True))
