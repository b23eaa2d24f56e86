"""Byte-pair encoding of a corpus, learned by `tokenizers` and kept as an ordinary Hugging Face tokenizer.

Ids follow Marian's convention, which CTranslate2 relies on: `</s>` is 0, `<unk>` 1, and `<pad>` the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stackelberg.errors import DataError, needs
from stackelberg.nmt.text import Segmentation

END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
MULTIPLE = 8  # of the vocabulary's size, for matrix units
WORD_END = "</w>"
SPACE = "▁"
MAX_LENGTH = 1024  # that a tokenizer says of itself


@dataclass
class Alphabet:
    """The characters that merges begin with, gathered as a corpus streams by."""

    inside: set[str] = field(default_factory=set)
    last: set[str] = field(default_factory=set)  # of a word, which is another piece

    def see(self, line: str) -> None:
        """One line of words separated by spaces."""
        self.inside.update(line)
        self.last.update(word[-1] for word in line.split(" ") if word)

    def size(self, segmentation: Segmentation) -> int:
        """How many pieces there are before the first merge."""
        if segmentation == "text":
            return len((self.inside - {" "}) | {SPACE})
        return len(self.inside - {" "}) + len(self.last)


def learn(lines: Iterable[str], alphabet: Alphabet, *, merges: int, segmentation: Segmentation) -> Any:
    """A `tokenizers.Tokenizer` with that many merges; of text that is cut into pieces, one of just these pieces."""
    with needs("tokenizers", extra="nmt"):
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers

    if segmentation == "pieces":
        found = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        found.decoder = decoders.Sequence(
            [decoders.Replace(tokenizers.Regex(r"\z"), " "), decoders.Replace("@@ ", ""), decoders.Fuse(),
             decoders.Strip(" ", 0, 1)]
        )  # fmt: skip
        trainer = trainers.WordLevelTrainer(
            vocab_size=1 << 24, min_frequency=1, show_progress=False, special_tokens=[END, UNKNOWN]
        )
    elif segmentation == "words":
        found = tokenizers.Tokenizer(models.BPE(unk_token=UNKNOWN))
        found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        size, inside = merges + alphabet.size(segmentation), sorted(alphabet.inside - {" "})
        trainer = _bpe_trainer(trainers, size, initial_alphabet=inside)
    else:
        found = tokenizers.Tokenizer(models.BPE(unk_token=UNKNOWN))
        found.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"), pre_tokenizers.Punctuation()]
        )
        found.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
        trainer = _bpe_trainer(trainers, merges + alphabet.size(segmentation))
    ends = _Ends()
    found.train_from_iterator(map(ends.marked, lines) if segmentation == "words" else lines, trainer)
    if segmentation == "words":
        vocabulary, pairs = ends.unmarked(json.loads(found.to_str())["model"])
        found.model = models.BPE(vocabulary, pairs, unk_token=UNKNOWN, end_of_word_suffix=WORD_END)
        found.decoder = decoders.BPEDecoder(suffix=WORD_END)
    if found.get_vocab_size() <= 2:
        raise DataError("no pair of the training corpus is left to learn a vocabulary from; see what was left out")
    return found


class _Ends:
    """A word's last character is a piece of its own: while merges are learned, a character of private use.

    The trainer knows ends of words too, but then numbers pieces in an order that changes from process to process, and
    so breaks ties between pairs in another way each time.
    """

    FIRST = 0xF0000

    def __init__(self) -> None:
        self.marks: dict[str, str] = {}  # c → what stands for c at a word's end

    def marked(self, line: str) -> str:
        """With every word's last character marked."""
        return " ".join(
            word[:-1] + self.marks.setdefault(word[-1], chr(self.FIRST + len(self.marks))) for word in line.split()
        )

    def unmarked(self, model: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, str]]]:
        """Vocabulary and merges, as a model has them that knows ends of words."""
        meant = {mark: c for c, mark in self.marks.items()}

        def of(piece: str) -> str:
            return piece[:-1] + meant[piece[-1]] + WORD_END if piece[-1] in meant else piece

        vocabulary = {of(piece): number for piece, number in model["vocab"].items()}
        return vocabulary, [(of(left), of(right)) for left, right in model["merges"]]


def finished(tokenizer: Any, size: int = 0) -> Any:
    """As `transformers` loads it: sentences end in `</s>`, and `<pad>` is the last of a multiple of 8, or of `size`."""
    with needs("transformers", extra="hf"):
        import transformers
    from tokenizers import processors

    size = max(size, whole_size(tokenizer))
    tokenizer.add_special_tokens([f"<unused{i}>" for i in range(size - 1 - tokenizer.get_vocab_size())] + [PAD])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    tokenizer.encode_special_tokens = True  # a sentence that says </s> does not end there
    wrapped: Any = transformers.PreTrainedTokenizerFast
    return wrapped(
        tokenizer_object=tokenizer,
        eos_token=END,
        unk_token=UNKNOWN,
        pad_token=PAD,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def whole_size(tokenizer: Any) -> int:
    """The size of its vocabulary once it is finished."""
    return -(-(int(tokenizer.get_vocab_size()) + 1) // MULTIPLE) * MULTIPLE


def _bpe_trainer(trainers: Any, size: int, **more: Any) -> Any:
    return trainers.BpeTrainer(
        vocab_size=size + 2, min_frequency=2, show_progress=False, special_tokens=[END, UNKNOWN], **more
    )


def chained(*files: Iterable[str]) -> Iterator[str]:
    """One after the other."""
    for lines in files:
        yield from lines
