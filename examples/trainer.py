"""Hugging Face's Trainer with SALT: another class, and one argument more."""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from stackelberg import SALT, AdversarialTrainer

torch.manual_seed(0)
# In earnest: AutoModelForSequenceClassification.from_pretrained(...), and your own data set and tokenizer.
config = BertConfig(
    vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = BertForSequenceClassification(config)
examples = [{"input_ids": ids, "labels": int(ids[0] > 9)} for ids in torch.randint(20, (160, 8))]


arguments = TrainingArguments(
    output_dir="runs/trainer",
    num_train_epochs=4,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,  # the gradient is that of one batch of 16
    learning_rate=2e-3,
    lr_scheduler_type="constant",
    eval_strategy="epoch",  # evaluation gives the plain loss
    logging_strategy="epoch",
    save_strategy="no",  # checkpoints hold the game's state too: trainer.train(resume_from_checkpoint=True)
    report_to=[],
    disable_tqdm=True,  # prints the logs instead: the game's figures are among them
)
trainer = AdversarialTrainer(
    model,
    arguments,
    train_dataset=examples[:128],
    eval_dataset=examples[128:],
    game=SALT(weight=1.0, epsilon=0.5, steps=1),
)
trainer.train()
