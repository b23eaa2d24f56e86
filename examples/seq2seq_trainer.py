"""Translation with Seq2SeqTrainer and SALT: words of both sides are perturbed, each side in its own ball."""

import torch
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainingArguments

from stackelberg import SALT, AdversarialSeq2SeqTrainer

PAD, END = 0, 1

torch.manual_seed(0)
# In earnest: AutoModelForSeq2SeqLM.from_pretrained(...), and your own data set and tokenizer.
config = MarianConfig(
    vocab_size=20, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=PAD, eos_token_id=END, forced_eos_token_id=END,
    decoder_start_token_id=PAD, max_position_embeddings=16, max_length=16,
)  # fmt: skip
model = MarianMTModel(config)
sources = torch.randint(2, 20, (128, 5)).tolist()  # each word is "translated" to its neighbour
examples = [{"input_ids": [*source, END], "labels": [*((w - 1) % 18 + 2 for w in source), END]} for source in sources]


arguments = Seq2SeqTrainingArguments(
    output_dir="runs/seq2seq", num_train_epochs=5, per_device_train_batch_size=16, learning_rate=5e-3,
    logging_strategy="epoch", save_strategy="no", report_to=[], disable_tqdm=True,  # prints the logs instead
)  # fmt: skip
AdversarialSeq2SeqTrainer(
    model,
    arguments,
    train_dataset=examples,
    data_collator=None,  # in earnest: DataCollatorForSeq2Seq(tokenizer, model); here all rows are equally long
    game=SALT(weight=1.0, epsilon=0.5, sides=("source", "target")),
).train()
