"""SALT for instruction tuning with LoRA: only answers are learnt, and only answers are perturbed."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from stackelberg import SALT

PAD = 0

torch.manual_seed(0)
# In earnest: AutoModelForCausalLM.from_pretrained(...), and your own data set.
config = LlamaConfig(
    vocab_size=24, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, pad_token_id=PAD
)
base = LlamaForCausalLM(config)
model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], r=8))
model.train()


def collate(pairs: list[tuple[list[int], list[int]]]) -> dict[str, torch.Tensor]:
    """Prompts and answers, padded on the left; labels are −100 at prompts and padding."""
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    rows = []
    for prompt, answer in pairs:
        empty = longest - len(prompt) - len(answer)
        ids = [PAD] * empty + prompt + answer
        rows.append((ids, [0] * empty + [1] * (longest - empty), [-100] * (longest - len(answer)) + answer))
    return dict(zip(("input_ids", "attention_mask", "labels"), map(torch.tensor, zip(*rows, strict=True)), strict=True))


questions = [[3 + i % 20, 3 + i % 7][: 1 + i % 2] for i in range(60)]
batches = [collate([(q, [q[0], q[0], 1]) for q in questions[i : i + 12]]) for i in range(0, 60, 12)]  # repeat it

optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
game = SALT(weight=1.0, epsilon=0.2, steps=1, perturb_prompt=False)

for epoch in range(8):
    losses = []
    for batch in batches:
        game(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(game.report.task_loss)
    print(f"epoch {epoch}: task loss {torch.stack(losses).mean():.4f}", flush=True)
