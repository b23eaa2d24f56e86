"""Batches: few shapes, little padding, every sentence once in an epoch, and a plan that needs no state."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from stackelberg.nmt.batches import ahead, of_sentences, tensors
from stackelberg.nmt.cache import Cache, CacheWriter
from stackelberg.nmt.plan import Plan, Position
from stackelberg.nmt.shapes import shapes_of
from tiny_translation import synthetic


def lengths(sentences: int = 5000) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    source = draw.gamma(3, 7, sentences).astype(np.int32) + 2
    target = np.maximum(2, (source * draw.normal(1.1, 0.25, sentences))).astype(np.int32)
    return source, target


@pytest.mark.parametrize(("most", "step"), [(1, 1), (4, 1), (12, 1), (12, 8)])
def test_every_sentence_fits_its_shape(most: int, step: int) -> None:
    source, target = lengths()
    shapes, number = shapes_of(source, target, max_tokens=4096, most=most, step=step)
    assert len(shapes) <= most
    for place, shape in enumerate(shapes):
        inside = number == place
        assert source[inside].max() <= shape.source and target[inside].max() <= shape.target
        assert source[inside].max() > shape.source - step and target[inside].max() > shape.target - step
        assert shape.rows * max(shape.source, shape.target) <= 4096 or shape.rows == 1
        assert shape.rows <= inside.sum() and (shape.rows < 8 or shape.rows % 8 == 0)


def test_more_shapes_pad_less() -> None:
    source, target = lengths()

    def padding(most: int) -> float:
        shapes, number = shapes_of(source, target, max_tokens=4096, most=most, step=1)
        padded = sum((number == i).sum() * (s.source + s.target) for i, s in enumerate(shapes))
        return float(1 - (source.sum() + target.sum()) / padded)

    found = [padding(most) for most in (1, 5, 10, 20)]
    assert found == sorted(found, reverse=True) and found[-1] < 0.15 < 0.6 < found[0]


def test_shapes_of_equal_sentences_are_one() -> None:
    same = np.full(10, 5, np.int32)
    shapes, number = shapes_of(same, same, max_tokens=20, most=8, step=1)
    assert [tuple(shape) for shape in shapes] == [(4, 5, 5)] and not number.any()


def test_an_epoch_plays_every_sentence_once_up_to_batches_that_straddle(tmp_path: Path) -> None:
    cache = synthetic(tmp_path).cache
    plan = Plan(cache, seed=0, batch_tokens=1, max_tokens=120, most=4)
    played: Counter[int] = Counter()
    for micro, after in plan.steps():
        if after.epoch == 4:
            break
        for batch in micro:
            assert len(batch.rows) == batch.shape.rows
            played.update(batch.rows.tolist())
    assert set(played) == set(range(len(cache)))
    assert all(3 <= times <= 5 for times in played.values())
    assert abs(sum(played.values()) / len(cache) - 4) < 0.15


def test_steps_have_the_tokens_they_should(tmp_path: Path) -> None:
    cache = synthetic(tmp_path).cache
    plan = Plan(cache, seed=0, batch_tokens=500, max_tokens=120, most=4, least=2)
    for micro, _ in islice(plan.steps(), 30):
        tokens = [plan.target_tokens(batch) for batch in micro]
        assert sum(tokens) >= 500 and len(micro) >= 2 and (sum(tokens[:-1]) < 500 or len(micro) == 2)
        for batch in micro:
            made = tensors(cache, batch.rows, batch.shape.source, batch.shape.target, 0)
            assert int((made["labels"] != -100).sum()) == plan.target_tokens(batch)
            assert int(made["attention_mask"].sum()) + plan.target_tokens(batch) == plan.tokens(batch)


def test_a_plan_goes_on_from_anywhere(tmp_path: Path) -> None:
    cache = synthetic(tmp_path).cache

    def plan() -> Plan:
        return Plan(cache, seed=3, batch_tokens=200, max_tokens=120, most=4)

    whole = list(islice(plan().steps(), 60))
    for step in (1, 7, 40):
        rest = list(islice(plan().steps(whole[step - 1][1]), 60 - step))
        assert [[b.rows.tolist() for b in micro] for micro, _ in rest] == [
            [b.rows.tolist() for b in micro] for micro, _ in whole[step:]
        ]
        assert [after for _, after in rest] == [after for _, after in whole[step:]]
    other = Plan(cache, seed=4, batch_tokens=200, max_tokens=120, most=4)
    assert next(other.steps(Position()))[0][0].rows.tolist() != whole[0][0][0].rows.tolist()


def test_a_corpus_smaller_than_a_batch(tmp_path: Path) -> None:
    with CacheWriter(tmp_path, 100) as writer:
        writer.add([[5, 0], [6, 7, 0], [8, 0]], [[1, 0], [2, 0], [3, 3, 0]])
        writer.finish({})
    plan = Plan(Cache(tmp_path), seed=0, batch_tokens=50, max_tokens=1000)
    micro, _ = next(plan.steps())
    assert sum(plan.target_tokens(batch) for batch in micro) >= 50


def test_batches_of_sentences_at_hand() -> None:
    batch = of_sentences([[5, 0], [6, 7, 0]], [[1, 0], [2, 0]], 9)
    assert batch["input_ids"].tolist() == [[5, 0, 9], [6, 7, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_what_is_made_ahead_stays_in_order_and_fails_where_it_fails() -> None:
    assert list(ahead(iter(range(20)), lambda i: i * i)) == [i * i for i in range(20)]
    found = ahead(iter([1, 0, 2]), lambda i: 1 // i)
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)
