"""AdversarialTrainer: the stock Trainer where nothing is played, and the game's gradient where it is."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import (
    AutoModelForSequenceClassification,
    EarlyStoppingCallback,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

import zoo
from helping import error
from stackelberg import (
    METHODS,
    SALT,
    VAT,
    AdversarialMixin,
    AdversarialSeq2SeqTrainer,
    AdversarialTrainer,
    Plain,
    SettingError,
    Task,
    create,
)
from stackelberg.adapters.diagnostics import Diagnostics
from stackelberg.adapters.replays import ReplayedSampler
from stackelberg.game.report import Report
from training import CASES, arguments, built, case, trained, weights

TESTS = Path(__file__).parent
# Renamed after transformers 5.17.
CHECKPOINTING = next(f for f in ("activation_checkpointing", "gradient_checkpointing") if hasattr(TrainingArguments, f))


def weighted(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """A user's own loss."""
    losses = nn.functional.cross_entropy(outputs["logits"], labels, reduction="none")
    return (losses * (1 + labels)).sum() / (len(labels) if num_items_in_batch is None else num_items_in_batch)


class OwnLoss(Trainer):
    """A user's own subclass."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        loss = outputs.loss * 2 + outputs.logits.square().mean()
        return (loss, outputs) if return_outputs else loss


class AdversarialOwnLoss(AdversarialMixin, OwnLoss):
    """The same, with a game."""


# --------------------------------------------------------------------------------------------------
# Plain is the stock Trainer to the last bit


@pytest.mark.parametrize(
    ("kind", "arch", "changes", "extra"),
    [
        ("classification", "bert", {}, {}),
        ("classification", "bert", {"bf16": True}, {}),
        ("classification", "bert", {"label_smoothing_factor": 0.1, "max_grad_norm": 0.1, "optim": "adamw_torch"}, {}),
        ("classification", "bert", {CHECKPOINTING: True, "train_sampling_strategy": "group_by_length"}, {}),
        ("classification", "bert", {}, {"compute_loss_func": weighted}),
        ("regression", "roberta", {}, {}),
        ("causal", "llama", {"label_smoothing_factor": 0.1}, {}),
        ("causal", "llama", {}, {}),
        ("token", "bert", {"bf16": True}, {}),
        ("seq2seq", "marian", {}, {}),
    ],
)
def test_plain_is_the_stock_trainer(
    kind: str, arch: str, changes: dict[str, Any], extra: dict[str, Any], tmp_path: Path
) -> None:
    model, rows = built(kind, arch, dtype=torch.float32, dropout=0.1)
    stock, ours = copy.deepcopy(model), copy.deepcopy(model)
    trained(Trainer, tmp_path, stock, rows, extra, **changes)
    runner = trained(AdversarialTrainer, tmp_path, ours, rows, {**extra, "game": Plain()}, **changes)
    assert torch.equal(weights(stock), weights(ours)) and not torch.equal(weights(ours), weights(model))
    assert runner.state.global_step == 3


def test_plain_is_a_users_own_subclass(tmp_path: Path) -> None:
    model, rows = built(dtype=torch.float32, dropout=0.1)
    stock, ours = copy.deepcopy(model), copy.deepcopy(model)
    trained(OwnLoss, tmp_path, stock, rows)
    trained(AdversarialOwnLoss, tmp_path, ours, rows, {"game": Plain()})
    assert torch.equal(weights(stock), weights(ours))


def test_seq2seq_trainer_generates_and_plays(tmp_path: Path) -> None:
    model, rows = built("seq2seq", "marian", dtype=torch.float32, rows=4)
    stock = arguments(tmp_path).to_dict()
    kept = {
        name: stock[name] for name in ("optim", "learning_rate", "max_steps", "report_to", "save_strategy", "use_cpu")
    }
    args = Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, generation_max_length=8, disable_tqdm=True, **kept
    )
    before = weights(model)
    trainer = AdversarialSeq2SeqTrainer(model, args, train_dataset=rows, eval_dataset=rows, game=SALT())
    trainer.train()
    assert not torch.equal(before, weights(model))
    assert trainer.predict(rows).predictions.shape[0] == 4


# --------------------------------------------------------------------------------------------------
# Any cut of a step gives the gradient of the one big batch

DETERMINISTIC = sorted(set(METHODS) - {"rdrop"})  # whose two masks are drawn for each pass


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_accumulation_is_the_one_big_batch(name: str, tmp_path: Path) -> None:
    """Of BERT, whose stock loss the stock Trainer would average over micro-batches; and the last one is smaller."""
    count = 12 if name == "freeat" else 11  # which replays full steps alone
    model, rows = built(rows=count)
    found = []
    for size, accumulate in ((count, 1), (3, 4)):
        ours = copy.deepcopy(model)
        changes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}
        trained(AdversarialTrainer, tmp_path, ours, rows, {"game": create(name)}, max_steps=2, **changes)
        found.append(weights(ours) - weights(model))
    assert error(found[1], found[0]) < 1e-6


@pytest.mark.parametrize("changes", [{}, {"label_smoothing_factor": 0.1}])
@pytest.mark.parametrize(("kind", "arch"), [("causal", "llama"), ("token", "bert"), ("seq2seq", "bart")])
def test_accumulation_counts_tokens(kind: str, arch: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Rows have different lengths, so micro-batches different numbers of tokens."""
    if kind == "seq2seq" and changes:
        pytest.skip("without labels, the stock Trainer's label smoothing needs a collator that shifts them")
    model, rows = built(kind, arch, rows=8)
    found = []
    for size, accumulate in ((8, 1), (2, 4)):
        ours = copy.deepcopy(model)
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}
        trained(AdversarialTrainer, tmp_path, ours, rows, {"game": SALT()}, max_steps=1, **sizes, **changes)
        found.append(weights(ours) - weights(model))
    assert error(found[1], found[0]) < 2e-6  # llama computes parts in float32


def test_accumulation_of_a_loss_of_ones_own(tmp_path: Path) -> None:
    """It divides by the items it is told; they are a batch's own, and the game sees to the rest."""
    model, rows = built(rows=12)
    found = []
    for size, accumulate in ((12, 1), (5, 3)):
        ours = copy.deepcopy(model)
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}
        extra = {"game": SALT(), "compute_loss_func": weighted}
        trained(AdversarialTrainer, tmp_path, ours, rows, extra, max_steps=1, **sizes)
        found.append(weights(ours) - weights(model))
    assert error(found[1], found[0]) < 1e-6


def test_two_processes_are_one(tmp_path: Path) -> None:
    """By torchrun, with accumulation; noise does not depend on the number of ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    done = subprocess.run(
        [*command, str(TESTS / "training.py"), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shared = torch.load(tmp_path / "weights.pt", weights_only=True)
    for name in CASES:
        untrained = weights(built(CASES[name][2], rows=24)[0])
        alone = weights(case(name, tmp_path, ranks=1))
        assert error(shared[name] - untrained, alone - untrained) < 1e-6, name


# --------------------------------------------------------------------------------------------------
# The loss of a game


def test_gradient_is_the_games(tmp_path: Path) -> None:
    """One step of SGD is the game's own gradient, noise numbered from 0."""
    model, rows = built(rows=4)
    ours = copy.deepcopy(model)
    trained(AdversarialTrainer, tmp_path, ours, rows, {"game": SALT(steps=2)}, max_steps=1, max_grad_norm=0.0)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(42))  # the Trainer's, in its first epoch
    batch = {name: torch.stack([rows[int(i)][name] for i in order]) for name in rows[0]}
    SALT(steps=2)(model, batch).backward()
    moved = torch.cat([(-0.05 * p.grad if p.grad is not None else 0 * p).flatten() for p in model.parameters()])
    assert error(weights(ours) - weights(model), moved.detach()) < 1e-9


def test_label_smoothing_is_the_task_loss_that_is_played_with(tmp_path: Path) -> None:
    model, rows = built(rows=4)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    args = arguments(tmp_path, label_smoothing_factor=0.3)
    trainer = AdversarialTrainer(model, args, train_dataset=rows, game=VAT())
    loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
    log_probs = torch.log_softmax(outputs.logits, -1)
    picked = -log_probs[torch.arange(4), batch["labels"]].mean()
    smooth = 0.7 * picked - 0.3 * log_probs.mean()
    report = trainer.game.report
    assert report is not None and report.task_loss is not None and report.divergence is not None
    assert torch.allclose(report.task_loss, smooth) and float(report.divergence) > 0
    assert torch.allclose(loss, smooth + report.divergence)


def test_evaluation_and_prediction_are_the_stock_ones(tmp_path: Path) -> None:
    model, rows = built(dtype=torch.float32)

    def accuracy(evaluation: Any) -> dict[str, float]:
        return {"accuracy": float((evaluation.predictions.argmax(-1) == evaluation.label_ids).mean())}

    stock = Trainer(model, arguments(tmp_path), eval_dataset=rows, compute_metrics=accuracy)
    ours = AdversarialTrainer(model, arguments(tmp_path), eval_dataset=rows, compute_metrics=accuracy, game=SALT())
    expected, found = stock.evaluate(), ours.evaluate()
    assert found["eval_loss"] == expected["eval_loss"] and found["eval_accuracy"] == expected["eval_accuracy"]
    assert (ours.predict(rows).predictions == stock.predict(rows).predictions).all()


def test_early_stopping_and_the_best_model(tmp_path: Path) -> None:
    model, rows = built(dtype=torch.float32)
    trainer = AdversarialTrainer(
        model,
        arguments(
            tmp_path, max_steps=12, learning_rate=0.0, eval_strategy="steps", eval_steps=1, save_strategy="best",
            load_best_model_at_end=True, metric_for_best_model="loss",
        ),
        train_dataset=rows, eval_dataset=rows, callbacks=[EarlyStoppingCallback(2)], game=SALT(),
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 3  # nothing improves after the first


def test_bfloat16_is_seen_by_the_game(tmp_path: Path) -> None:
    """Accelerate casts inside the model's forward; the game must know what it rounds."""
    model, rows = built(dtype=torch.float32)
    seen = []

    class Seeing(VAT):
        def observe(self, report: Report, precision: str, start_given: bool) -> None:
            seen.append(precision)

    trained(AdversarialTrainer, tmp_path, model, rows, {"game": Seeing()}, bf16=True)
    assert seen == ["bfloat16"] * 3


@pytest.mark.parametrize("name", ["salt", "vat", "plain"])
def test_gradient_checkpointing_changes_nothing(name: str, tmp_path: Path) -> None:
    """And a game that is played again begins anew."""
    model, rows = built(dropout=0.1)
    game = create(name)
    found = []
    for checkpointing in (False, True):
        ours = copy.deepcopy(model)
        trained(AdversarialTrainer, tmp_path, ours, rows, {"game": game}, **{CHECKPOINTING: checkpointing})
        found.append(weights(ours) - weights(model))
    assert error(found[1], found[0]) < 1e-9


def test_torch_compile_compiles_the_games_passes(tmp_path: Path) -> None:
    """Not the model, whose compiled form has no second derivative."""
    model, rows = built(rows=4)
    found = []
    for compiled in (False, True):
        ours, game = copy.deepcopy(model), SALT()
        runner = trained(AdversarialTrainer, tmp_path, ours, rows, {"game": game}, max_steps=1, torch_compile=compiled)
        assert not hasattr(runner.model_wrapped, "_orig_mod")
        found.append(weights(ours) - weights(model))
    assert game.speed.mode == "compiled" and not game.speed.of(ours).layers.refused
    assert game.speed.of(ours).layers.operations
    assert error(found[1], found[0]) < 1e-6


def test_lora_trains_adapters_alone(tmp_path: Path) -> None:
    base, rows = built(dtype=torch.float32)
    frozen = copy.deepcopy(base.bert.embeddings.word_embeddings.weight)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"]))
    before = weights(model)
    runner = trained(AdversarialTrainer, tmp_path, model, rows, {"game": SALT()})
    assert not torch.equal(before, weights(model))
    assert torch.equal(frozen, base.bert.embeddings.word_embeddings.weight)
    runner.save_model()
    again = peft.PeftModel.from_pretrained(built(dtype=torch.float32)[0], str(tmp_path), is_trainable=True)
    assert torch.equal(weights(again), weights(model))
    assert json.loads((tmp_path / "stackelberg.json").read_text())["method"] == "salt"


def test_a_module_of_ones_own_is_described_to_the_game(tmp_path: Path) -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(zoo.VOCABULARY, 8), nn.Linear(8, 3)

        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.head(self.words(input_ids).mean(1))
            return {"logits": logits} | (
                {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
            )

    _, rows = built(dtype=torch.float32)
    rows = [{name: row[name] for name in ("input_ids", "labels")} for row in rows]
    with pytest.raises(SettingError, match="Bag is not a Hugging Face model"):
        trained(AdversarialTrainer, tmp_path, Bag(), rows, {"game": SALT()})
    task = Task(
        "classification",
        logits=lambda m, b: m(b["input_ids"])["logits"],
        loss=lambda z, b: nn.functional.cross_entropy(z, b["labels"]),
    )
    runner = trained(AdversarialTrainer, tmp_path, Bag(), rows, {"game": SALT(task=task)})
    assert runner.state.log_history[0]["game/divergence"] > 0


# --------------------------------------------------------------------------------------------------
# TRL


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing:FutureWarning")  # TRL's own default
def test_sft_trainer_plays(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")

    class AdversarialSFTTrainer(AdversarialMixin, trl.SFTTrainer):
        """TRL's, with a game."""

    model, rows = built("causal", "llama", dtype=torch.float32)
    data = __import__("datasets").Dataset.from_list([{"input_ids": row["input_ids"].tolist()} for row in rows])
    stock = arguments(tmp_path).to_dict()
    names = (
        "optim",
        "learning_rate",
        "max_steps",
        "report_to",
        "save_strategy",
        "use_cpu",
        "disable_tqdm",
        "logging_steps",
    )
    args = trl.SFTConfig(
        str(tmp_path),
        **{name: stock[name] for name in names},
        bf16=False,
        gradient_checkpointing=False,
    )
    tokenizer = _tokenizer()
    trainer = AdversarialSFTTrainer(model, args, train_dataset=data, processing_class=tokenizer, game=SALT())
    with pytest.warns(UserWarning, match="AdversarialSFTTrainer's own loss makes no logits"):
        trainer.train()
    first = trainer.state.log_history[0]
    assert first["game/divergence"] > 0 and first["loss"] > first["game/task_loss"] > 0


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<mask>": 3, **{f"w{i}": i for i in range(4, zoo.VOCABULARY)}}
    core = Tokenizer(models.WordLevel(words, unk_token="<mask>"))
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<bos>", eos_token="<eos>")


# --------------------------------------------------------------------------------------------------
# What is written down


def test_logs_and_card_and_folder(tmp_path: Path) -> None:
    model, rows = built(dtype=torch.float32)
    runner = trained(AdversarialTrainer, tmp_path, model, rows, {"game": SALT(weight=2.0)}, logging_steps=3)
    history = runner.state.log_history[0]
    assert history["loss"] == pytest.approx(history["game/task_loss"] + 2 * history["game/divergence"], rel=1e-3)
    runner.save_model()
    runner.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert "Trained with method `salt`" in card and "| `weight` | `2.0` |" in card and "| divergence |" in card
    assert "- adversarial-regularization\n" in card.split("---")[1]
    runner.create_model_card()
    assert (tmp_path / "README.md").read_text() == card
    code = (
        "import sys; from transformers import AutoModelForSequenceClassification as A; "
        f"A.from_pretrained({str(tmp_path)!r}); assert 'stackelberg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(weights(again), weights(model))


def test_figures_are_averaged_over_steps() -> None:
    """Of two micro-batches the objectives add up, of two steps they are averaged."""
    diagnostics = Diagnostics()
    for first, divergence, surface in ((True, 1.0, 0.0), (False, 2.0, 1.0), (True, 5.0, 1.0)):
        diagnostics.note(Report(divergence=torch.tensor(divergence), surface=torch.tensor(surface)), first)
    assert diagnostics.drain() == {"divergence": 4.0, "surface": 0.75}
    assert diagnostics.drain() == {"divergence": 4.0, "surface": 0.75}  # nothing new: what is known last
    diagnostics.note(Report(divergence=torch.tensor(7.0), loss=torch.tensor(9.0)), True)
    assert diagnostics.drain() == {"divergence": 7.0}


# --------------------------------------------------------------------------------------------------
# Replays


def test_replayed_sampler_repeats_whole_steps() -> None:
    sampler = ReplayedSampler(torch.utils.data.SequentialSampler(range(7)), block=3, times=2, seed=0)
    assert list(sampler) == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6] and len(sampler) == 13
    shuffled = [
        list(ReplayedSampler(torch.utils.data.RandomSampler(range(7)), block=3, times=2, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert shuffled[0] == shuffled[1] != shuffled[2]


def test_freeat_replays_steps_in_fewer_epochs(tmp_path: Path) -> None:
    """Three replays: three epochs' steps, each batch three times in a row, from one pass over the data."""
    model, rows = built(dtype=torch.float32, rows=8)
    seen: list[tuple[int, ...]] = []
    key = {tuple(row["input_ids"].tolist()): i for i, row in enumerate(rows)}

    class Watching(AdversarialTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(tuple(key[tuple(ids)] for ids in inputs["input_ids"].tolist()))
            return super().compute_loss(model, inputs, *args, **kwargs)

    changes = {
        "max_steps": -1,
        "num_train_epochs": 3,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
    }
    runner = trained(Watching, tmp_path, model, rows, {"game": create("freeat", replays=3)}, **changes)
    assert runner.state.global_step == 6 and runner.args.num_train_epochs == 3
    steps = [seen[i : i + 2] for i in range(0, len(seen), 2)]
    assert steps[0] == steps[1] == steps[2] != steps[3] == steps[4] == steps[5]
    assert sorted(sum([*steps[0], *steps[3]], ())) == list(range(8))


# --------------------------------------------------------------------------------------------------
# Refusals


class Endless(IterableDataset[dict[str, Tensor]]):
    def __iter__(self) -> Any:
        return iter(built(rows=4)[1])


@pytest.mark.parametrize(
    ("changes", "extra", "says"),
    [
        ({}, {"game": "salt"}, "game='salt' should be a method of stackelberg, such as SALT()"),
        ({"ddp_static_graph": True}, {}, "ddp_static_graph=True loses the game's gradients"),
        ({}, {"game": create("freeat"), "train_dataset": Endless()}, "give one that is not an IterableDataset"),
    ],
)
def test_refused_before_training(changes: dict[str, Any], extra: dict[str, Any], says: str, tmp_path: Path) -> None:
    model, rows = built()
    with pytest.raises(SettingError) as caught:
        AdversarialTrainer(
            model, arguments(tmp_path, **changes), **{"train_dataset": rows, "game": SALT(), **extra}
        ).train()
    assert says in str(caught.value)


def test_several_gpus_in_one_process_are_refused(tmp_path: Path) -> None:
    class TwoGPUs(TrainingArguments):
        n_gpu = property(lambda self: 2)  # type: ignore[assignment]

    args = arguments(tmp_path)
    args.__class__ = TwoGPUs
    with pytest.raises(SettingError, match=r"2 GPUs in one process are nn.DataParallel"):
        AdversarialTrainer(built()[0], args, game=SALT())
